"""Files: written whole, read within bounds, recognised by a digest."""
