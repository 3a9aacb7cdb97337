"""Memory: a trace replayed through torch's allocator."""
