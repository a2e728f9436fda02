"""Files: written atomically, read within size limits, verified by a digest."""
