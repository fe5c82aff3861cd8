"""The HTTP API: the table of routes, the bodies that they take, and the handlers that answer them from the engine."""
