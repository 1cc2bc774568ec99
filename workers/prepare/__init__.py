"""Makes a model folder ready to serve: from the hub, a GGUF file, or nothing."""
