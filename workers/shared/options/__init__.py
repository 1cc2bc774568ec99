"""Options: each declared once, as a field of a struct, and read from flags, variables and files alike."""
