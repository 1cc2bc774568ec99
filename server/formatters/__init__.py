"""How an answer is written: one formatter an endpoint, whole or as server-sent events."""
