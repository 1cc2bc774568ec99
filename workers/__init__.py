"""Stage workers and the ground floor they share with the server: frames, messages, bus, configuration."""
