"""Queues: jobs, leases, claims, acks and dead letters, derived from an ordinary topic and its leases log.

Guarantees that a job has at most one holder at a time and is delivered at least once. Knows write and log, but no
router.
"""
