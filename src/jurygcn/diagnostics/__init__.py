"""Whether jurors can be trusted, and what drives a prediction."""
