"""How an answer is written: one formatter an endpoint, for the whole of it and for its events."""
