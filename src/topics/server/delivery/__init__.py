"""Live delivery: who follows which topic, whose turn it is, and the streams (SSE, WebSocket, work) that carry it."""
