"""Juries and verdicts as text and as small figures."""
