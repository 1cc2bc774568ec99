"""What is known of a cascade of models from outside: where they listen, and their figures."""
