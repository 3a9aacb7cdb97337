"""Reading and writing of files: whole or not at all, without secrets."""
