"""Drafters: ways to guess the next token. Nothing outside this package asks which one runs."""
