"""Routers: what is appended to a source is also appended to a destination, once per router and in order.

Imports neither `queue` nor `restart`, but keeps what a restart needs to make the same copies again.
"""
