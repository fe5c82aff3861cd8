"""What can be wrong with stored bytes, as every reader of them reports it.

Damage is never silent and never more than it is: `Corrupt` names the bytes and exactly the records that are lost with
them. `UnknownFormat` and `Unusable` stop a start before it has changed anything.
"""

from __future__ import annotations

from typing import NamedTuple


class LostRecords(NamedTuple):
    """Records that damaged bytes held: `n` of them from `first_seq`. With n = 0 nothing is lost."""

    topic_id: int
    first_seq: int
    n: int


class Corrupt(Exception):
    """Stored bytes are damaged: the records of `lost` cannot be read any more.

    `quarantined` is where a copy of the bytes is, or "".
    """

    def __init__(self, path: str, offset: int, length: int, lost: LostRecords, quarantined: str = "") -> None:
        self.path = path
        self.offset = offset
        self.length = length
        self.lost = lost
        self.quarantined = quarantined
        super().__init__(f"{path}: damaged at {offset}, {length} bytes")


class UnknownFormat(Exception):
    """A file was written in a format that this program does not read."""


class Unusable(Exception):
    """A data directory that no start may touch before it has been repaired; the message says how."""
