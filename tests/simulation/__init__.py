"""Laws of speed and the choices that follow from them, in machines that are made up; no torch, no processes."""
