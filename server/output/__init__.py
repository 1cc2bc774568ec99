"""From verified tokens to what a client reads: text, stop strings, reasoning, log-probabilities."""
