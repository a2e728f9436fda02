"""Diagnostics of jurors, and the influence of labels on predictions."""
