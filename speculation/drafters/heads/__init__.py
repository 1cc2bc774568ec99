"""Drafters that read hidden states of verified tokens: chains of EAGLE-3 and MTP heads, and P-EAGLE in one pass."""
