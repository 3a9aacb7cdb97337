"""Memory of a GPU outside torch's allocator in a prediction: what appears there, and its measured sizes."""
