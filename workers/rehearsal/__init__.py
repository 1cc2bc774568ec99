"""Stand-ins for hardware that is not at hand, assembled around the real parts."""
