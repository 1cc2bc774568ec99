"""`echelon join`: a host that holds stages of an engine whose rank 0 runs elsewhere."""
