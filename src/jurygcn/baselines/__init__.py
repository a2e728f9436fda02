"""What the jury is compared with: classifiers with uncertainty, with their authors' settings."""
