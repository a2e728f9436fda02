"""Label in the browser: a local web application. Only the worker process imports torch."""
