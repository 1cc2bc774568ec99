"""What a training step learns from: texts, their order, what is drawn from them, and how they are packed."""
