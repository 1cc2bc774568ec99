"""The server's end of the request bus, and what it knows of the engine's health."""
