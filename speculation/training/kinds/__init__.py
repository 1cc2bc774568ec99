"""What is trained: a file a kind, with its initial weights, its loss and its checkpoint."""
