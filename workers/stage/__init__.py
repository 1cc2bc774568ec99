"""One stage: its loop, what it knows of frames to come, and its sampling head."""
