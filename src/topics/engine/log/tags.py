"""The tag index: which seqs carry which tag, so that a delete by tag never scans the log (DELETE-9).

`TagIndex` covers the records of a topic that are not sealed; a sealed segment has its own in its `.idx` file. Exact
match is a point lookup, prefix match a range over the sorted tags. Entries of records that were evicted or deleted are
dropped lazily: a lookup skips them, and once they outnumber the live ones the index is swept, so the cost per record
stays constant.

`TagMatch` is the predicate of DELETE-3: `Eq`, or `Glob` with a single trailing `*`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from topics.errors import InvalidRequest

_SWEEP_MIN = 4096


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


class TagIndex:
    """Tags of the unsealed records of one topic, each with its ascending seqs."""

    __slots__ = ("_fresh", "_keys", "_postings", "_seqs")

    def __init__(self) -> None:
        self._postings: dict[bytes, list[int]] = {}
        self._keys: list[bytes] = []
        self._fresh: list[bytes] = []
        self._seqs = 0

    def add(self, first_seq: int, tags: Sequence[bytes | None]) -> None:
        """Enter consecutive records from `first_seq` on."""
        postings = self._postings
        for seq, tag in enumerate(tags, first_seq):
            if tag is None:
                continue
            seqs = postings.get(tag)
            if seqs is None:
                postings[tag] = [seq]
                self._fresh.append(tag)
            else:
                seqs.append(seq)
            self._seqs += 1

    def find(self, match: TagMatch, start: int, before_seq: int) -> list[int]:
        """The seqs in [start, before_seq) of records with a matching tag, sorted within each tag only."""
        found: list[int] = []
        for tag in self._matching(match):
            seqs = self._postings[tag]
            found.extend(seqs[bisect_left(seqs, start) : bisect_left(seqs, before_seq)])
        return found

    def _matching(self, match: TagMatch) -> Iterator[bytes]:
        if not match.prefix:
            if match.text in self._postings:
                yield match.text
            return
        keys = self._sorted_keys()
        at = bisect_left(keys, match.text)
        while at < len(keys) and keys[at].startswith(match.text):
            yield keys[at]
            at += 1

    def _sorted_keys(self) -> list[bytes]:
        if self._fresh:
            self._keys += self._fresh
            self._keys.sort()
            self._fresh = []
        return self._keys

    def sweep(self, start: int, live: int, force: bool = False) -> None:
        """Drop the entries below `start`, once they outnumber the `live` records (or at once)."""
        if not force and self._seqs <= max(_SWEEP_MIN, 2 * live):
            return
        kept = {}
        for tag, seqs in self._postings.items():
            rest = seqs[bisect_left(seqs, start) :]
            if rest:
                kept[tag] = rest
        self._postings = kept
        self._keys = sorted(kept)
        self._fresh = []
        self._seqs = sum(map(len, kept.values()))
