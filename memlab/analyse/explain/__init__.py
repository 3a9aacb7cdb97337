"""Where every byte goes: the accounting of a measured or predicted run, from the driver's figure to the line of code.

    rankN.memory_snapshot.pickle -> snapshot.py -> snapshot_trace.py -> Trace \\
                                                        prediction -> Trace  -> ledger of moments
"""
