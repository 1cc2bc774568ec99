"""`echelon serve`: options, configuration, processes and their supervision."""
