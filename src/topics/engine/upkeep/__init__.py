"""What the engine does for its data directory besides serving: it seals, checkpoints and moves, in slices.

Guarantees that memory, WAL and restart time stay bounded by settings. May know everything in the engine; nothing in the
engine knows it.
"""
