"""Checkpoints: one file with everything that the log held up to an lsn, written whole or not at all.

Knows the frames of the write-ahead log, in which its sections are written, and nothing of the engine that fills them.
"""
