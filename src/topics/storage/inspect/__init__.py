"""A data directory for people: every byte checked (`verify`), everything printed (`dump`).

Takes no lock and changes nothing. Nothing in storage may depend on it.
"""
