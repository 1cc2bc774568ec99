"""The page that shows the pipeline at work, and what it is told."""
