"""Votes, counts, intervals, label sets and the coverage that they claim."""
