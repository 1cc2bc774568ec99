"""Weights that are stored in fewer than 16 bits: which a model folder has, how, and what they take in memory."""
