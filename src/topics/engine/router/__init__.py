"""Routers: what is appended to a source is also appended to a destination, exactly once and in order."""
