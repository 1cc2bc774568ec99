"""What goes over the wire: bodies of requests, responses and stream chunks, and what is refused by name."""
