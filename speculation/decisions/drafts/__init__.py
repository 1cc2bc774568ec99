"""Drafts: the tree that they make, and what each is worth."""
