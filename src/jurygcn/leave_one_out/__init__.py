"""Leave-one-out models: estimated from the curvature, or retrained."""
