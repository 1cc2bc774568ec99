"""What is told of a pipeline at work while somebody looks at it."""
