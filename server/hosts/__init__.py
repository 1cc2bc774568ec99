"""Where hosts that join with `echelon join` are gathered into an engine."""
