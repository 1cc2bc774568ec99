"""Training of draft modules: on-policy text, the loss, the loop, and their command lines."""
