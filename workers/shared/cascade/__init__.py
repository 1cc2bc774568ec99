"""What is known of a cascade of models from outside: its figures, and what they should be."""
