"""Types and rules of memlab's own data: configuration, plan, record. Pure: no files, no machine."""
