"""What hosts that serve together share: a secret, the messages by which they join, proofs of their links; torch-free."""
