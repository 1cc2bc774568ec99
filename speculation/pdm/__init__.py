"""The Pipeline Draft Module: drafts the next token from the target's hidden states at several depths."""
