"""For hosts that serve together, torch-free: their secret, the messages by which they join, proofs of their links."""
