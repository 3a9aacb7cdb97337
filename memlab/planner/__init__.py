"""What fits, before GPUs are rented: searches, remedies, many predictions at once."""
