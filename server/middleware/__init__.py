"""What every request passes on its way in, and every error on its way out."""
