"""A data directory becomes an engine that goes on where the last one stopped; checkpoints keep that short."""
