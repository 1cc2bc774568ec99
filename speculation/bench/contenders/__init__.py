"""What is measured: `echelon serve` groups, and others beside them."""
