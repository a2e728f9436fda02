"""Edits of a graph and what they do to predictions, without retraining."""
