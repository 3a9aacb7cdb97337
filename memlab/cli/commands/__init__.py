"""Sub-commands of ``memlab``: one module each, with ``add_arguments(parser)`` and ``run(arguments) -> exit code``.

``run`` imports its modules itself, so that ``--help`` is fast.
"""
