"""Votes, counts, intervals, label sets and what may be claimed of them."""
