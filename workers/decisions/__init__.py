"""What a stage decides and how layers are shared out, pure: no torch, no sockets, no clock."""
