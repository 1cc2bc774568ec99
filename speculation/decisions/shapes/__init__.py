"""What frames hold, and what that costs. Pure."""
