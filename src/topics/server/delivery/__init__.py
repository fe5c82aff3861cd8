"""Live delivery: every stream (SSE, WebSocket, work) gets each record once, in order, and never holds up another.

It knows the handlers of `api` for what both answer alike; it knows neither the table of routes nor the process.
"""
