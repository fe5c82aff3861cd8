"""The log of one topic: its Blocks, floors, lost ranges, segments and tags, and how a cursor reads it.

Guarantees that counts are exact, that nothing that is gone comes back, and that every loss is reported. Knows no write,
no queue and no router: it holds what it is given.
"""
