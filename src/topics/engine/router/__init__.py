"""Routers: what is appended to a source is also appended to a destination, once per router and in order.

Knows neither queues nor how a restart goes.
"""
