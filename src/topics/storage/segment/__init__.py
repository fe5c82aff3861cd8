"""Sealed records on disk: a Segment, the format of its files, the set of all Segments, and the tiers they live in.

Knows nothing of the write-ahead log's files and of snapshots.
"""
