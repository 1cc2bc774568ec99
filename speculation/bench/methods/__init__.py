"""`python -m speculation.bench.methods`: all methods on the same workers, as one page."""
