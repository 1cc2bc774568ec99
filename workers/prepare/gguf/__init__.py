"""GGUF files, the format of llama.cpp: every key and tensor is applied as llama.cpp does, or refused by name."""
