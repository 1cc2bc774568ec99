"""`echelon doctor`: what this machine can do, and what is wrong with it."""
