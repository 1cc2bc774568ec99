"""From measurements to tables and curves. Pure."""
