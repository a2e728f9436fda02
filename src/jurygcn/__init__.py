"""Jackknife uncertainty for graph neural networks."""
