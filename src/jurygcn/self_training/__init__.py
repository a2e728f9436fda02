"""Self-training with few labels: the jury selects pseudo-labels in rounds."""
