"""Measurements of a running server; `python -m bench` runs them."""
