"""Classifiers with uncertainty that the jury is compared with. Each has its authors' settings."""
