"""What the engine does for its data directory besides serving: seals, checkpoints and moves, in slices."""
