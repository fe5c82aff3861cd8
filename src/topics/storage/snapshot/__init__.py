"""Checkpoints: one file that stands for everything the log said up to an lsn, written whole or not at all."""
