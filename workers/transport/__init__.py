"""The data plane: hidden states between neighbouring stages, behind one small interface."""
