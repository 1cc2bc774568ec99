"""Every decision of rank 0, as pure functions and state machines: no torch, no sockets, no clock."""
