"""Backup and restore: what `topics backup` and `topics restore` do, on the client's side of the BACKUP rules.

A backup is a data directory plus a manifest (manifest.py), as of one moment of a server that went on serving.
"""
