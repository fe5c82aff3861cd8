"""The log of one topic: its Blocks, floors, lost ranges and tags, and how a cursor reads it.

Knows no write, no queue and no router: it holds what it is given.
"""
