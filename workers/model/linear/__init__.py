"""Linear layers over packed weights, which never exist unpacked as a whole."""
