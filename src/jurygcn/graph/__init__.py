"""The graph as matrices: sparse products, their cache, and walks along edges."""
