"""Juries and verdicts in words and as small figures."""
