"""Forks: notices that this process is a child of the one that made a connection or a producer.

What belongs to the parent must not be used in the child. To compare process ids would take a call of the kernel for
each record, so a child counts itself when it begins.
"""

from __future__ import annotations

import os

count = 0
"""How many forks there are between this process and the one that imported the library."""


def _count() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
