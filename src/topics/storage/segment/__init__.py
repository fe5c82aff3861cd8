"""Sealed records on disk: a Segment, the format of its files, the set of all Segments, and the tiers they live in.

A segment's files are durable before anything refers to them, and stay until nothing does. Knows nothing of the
write-ahead log and of snapshots.
"""
