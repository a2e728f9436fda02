"""Sparse products with a graph's matrices, their cache, and neighbourhoods."""
