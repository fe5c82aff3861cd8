"""The write-ahead log: frames in the files of shards, made durable in groups, and read again at a restart.

A gated frame is acknowledged only once it is on stable storage, in the order of its shard. Knows nothing of segments,
snapshots, topics or queues: a frame is a kind, a topic id and bytes.
"""
