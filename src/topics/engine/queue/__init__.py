"""Queues: jobs, leases, claims, acks and dead letters, as a projection over an ordinary topic."""
