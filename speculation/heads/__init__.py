"""Draft heads that people own: networks that draft from hidden states of verified tokens, and their files."""
