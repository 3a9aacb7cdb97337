"""Starting DeepSpeed's launcher, watching it, ending it, and saying what happened."""
