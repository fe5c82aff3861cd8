"""The tag index: which seqs carry which tag, so that a delete by tag never scans the log (DELETE-9).

`TagIndex` covers the records of a topic that are not sealed; a sealed segment has its own in its `.idx` file. It
consists of parts, each for a bounded number of records, so that nothing here takes long, however many records there
are. Exact match is a lookup in each part, prefix match a look at the tags of each. Entries of records that were sealed,
evicted or deleted are skipped by a lookup, and go with their part.

`TagMatch` is the predicate of DELETE-3: `Eq`, or `Glob` with a single trailing `*`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from topics.errors import InvalidRequest

PART_RECORDS: Final = 16_384
# What a sweep drops at most; the next one goes on.
_SWEEP_PARTS: Final = 2
_PIECE_TAGS: Final = 4096


class TagMatch:
    """A tag predicate: equality with `text`, or, where `prefix` is set, tags that start with it."""

    __slots__ = ("prefix", "text")

    def __init__(self, text: bytes, prefix: bool) -> None:
        self.text = text
        self.prefix = prefix

    def __call__(self, tag: bytes | None) -> bool:
        """Whether a record with this tag matches; one without a tag never does."""
        if tag is None:
            return False
        return tag.startswith(self.text) if self.prefix else tag == self.text


def parse_match(value: Any, field: str = "match") -> TagMatch:
    """The predicate that a client wrote as `["tag","Eq","X"]`, `["tag","Glob","X*"]` or a bare string."""
    if isinstance(value, str):
        return TagMatch(value.encode(), prefix=False)
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(part, str) for part in value):
        raise InvalidRequest(
            f'{field} must be a tag, ["tag","Eq","X"] or ["tag","Glob","X*"]', field=field, got=_shape(value)
        )
    subject, op, pattern = value
    if subject != "tag":
        raise InvalidRequest(f'{field} can only match on "tag", not on "{subject[:64]}"', field=field)
    if op == "Eq":
        return TagMatch(pattern.encode(), prefix=False)
    if op != "Glob":
        raise InvalidRequest(f'{field} supports the operators Eq and Glob, not "{op[:64]}"', field=field)
    if not pattern.endswith("*") or pattern.count("*") != 1:
        raise InvalidRequest(
            f"{field}: a Glob pattern is a literal prefix followed by a single trailing *", field=field
        )
    return TagMatch(pattern[:-1].encode(), prefix=True)


def _shape(value: Any) -> str:
    return type(value).__name__ if not isinstance(value, list) else f"list of {len(value)}"


class TagPart:
    """Tags of consecutive records, each with its ascending seqs; `records` of them have none or one."""

    __slots__ = ("last_seq", "postings", "records")

    def __init__(self) -> None:
        self.postings: defaultdict[bytes, list[int]] = defaultdict(list)
        self.last_seq = 0
        self.records = 0

    def find(self, match: TagMatch, first: int, before_seq: int) -> Iterator[list[int]]:
        """The seqs in [first, before_seq) of records with a matching tag, in pieces, in no particular order."""
        postings, text = self.postings, match.text
        if not match.prefix:
            seqs = postings.get(text, [])
            yield seqs[bisect_left(seqs, first) : bisect_left(seqs, before_seq)]
            return
        # A copy, because records may be entered between two pieces.
        tags = iter(list(postings))
        while piece := list(islice(tags, _PIECE_TAGS)):
            yield [seq for tag in piece if tag.startswith(text) for seq in postings[tag] if first <= seq < before_seq]


class TagIndex:
    """Tags of the unsealed records of one topic."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: deque[TagPart] = deque()

    def add(self, first_seq: int, tags: Sequence[bytes | None]) -> None:
        """Enter consecutive records from `first_seq` on."""
        parts = self.parts
        if not parts or parts[-1].records >= PART_RECORDS:
            parts.append(TagPart())
        part = parts[-1]
        postings = part.postings
        for seq, tag in enumerate(tags, first_seq):
            if tag is not None:
                postings[tag].append(seq)
        part.last_seq = first_seq + len(tags) - 1
        part.records += len(tags)

    def part_at(self, seq: int) -> TagPart | None:
        """The part that holds `seq`, or else the first one after it."""
        return next((part for part in self.parts if part.last_seq >= seq), None)

    def sweep(self, start: int) -> None:
        """Drop parts of which everything is below `start`."""
        parts = self.parts
        for _ in range(_SWEEP_PARTS):
            if not parts or parts[0].last_seq >= start:
                return
            parts.popleft()
