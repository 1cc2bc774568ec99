"""`echelon bench`: every method on the same workers, prompts and machine, over HTTP, everything counted."""
