"""What every process does around its work: what it says, and how it ends."""
