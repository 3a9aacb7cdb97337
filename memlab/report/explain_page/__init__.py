"""HTML page of explained runs in one file: memory over time, and who holds what at any moment."""
