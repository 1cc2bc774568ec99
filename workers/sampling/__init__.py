"""From logits to a token, as plain decoding would choose it."""
