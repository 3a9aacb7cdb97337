"""The sub-commands of ``memlab``: a module each, with ``add_arguments(parser)`` and ``run(arguments) -> exit code``.

What only ``run`` needs is imported there, so that ``--help`` answers at once.
"""
