"""Bytes and fsync: Blocks, WAL shards, segments, tiers, snapshots and recovery, all through one Disk."""
