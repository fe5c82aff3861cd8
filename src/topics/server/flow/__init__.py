"""Flow: what gives way under load. Small writes are gathered, writes wait or are refused, deliveries are ordered.

Latency gives way, never a record. It knows the engine, but no handler and no stream.
"""
