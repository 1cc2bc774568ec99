"""One stage's share of a Hugging Face model, and its keys and values."""
