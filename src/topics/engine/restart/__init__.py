"""A data directory becomes an engine that continues where the last one stopped; checkpoints keep that short.

Guarantees that what was promised is there again and that what is missing is reported as lost. Knows all of the engine
but its upkeep, and serves no request.
"""
