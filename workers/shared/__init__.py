"""The torch-free ground floor under every process: frames, messages, bus, configuration."""
