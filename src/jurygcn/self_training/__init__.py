"""Learning from few labels: pseudo-labels that the jury finds credible, in rounds."""
