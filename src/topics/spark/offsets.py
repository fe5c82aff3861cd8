"""Offsets: how far a query has read each topic, as JSON that Spark keeps in its checkpoint.

    {"clicks": {"epoch": 7, "seq": 120}, "orders": {"epoch": 3, "seq": 4096}}

Where several servers are read, each place also has the address of its `server`.

A seq is a cursor: everything up to and including it has been read. It means something only together with the epoch,
the identity of the topic from its creation to its deletion, because a topic that was deleted and created again
counts from 1 again. Spark compares offsets as text, so the topics are always in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from topics.spark.errors import BadOption, SourceError

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
BEGINNING: Final = "beginning"
SERVER: Final = "server"
_WORDS: Final = (EARLIEST, LATEST, BEGINNING)
_KAFKA_WORDS: Final = {-2: EARLIEST, -1: LATEST}


class Cursor(NamedTuple):
    """A place in one topic instance; the epoch is None where a user named only a seq."""

    epoch: int | None
    seq: int


Wanted = str | Cursor
"""Where to start or end: one of the words, or a cursor."""


class WantedOffsets:
    """The value of `startingOffsets` or `endingOffsets`: a word for all topics, or a place for each."""

    def __init__(self, option: str, text: str) -> None:
        self.option = option
        self._text = text
        self._default = EARLIEST if option == "startingOffsets" else LATEST
        self._places: dict[str, Wanted] = {}
        self.homes: dict[str, str] = {}
        """The servers of the topics, where the offsets name them."""
        words = _WORDS if option == "startingOffsets" else (LATEST,)
        if text.strip().lower() in words:
            self._default = text.strip().lower()
            return
        try:
            places = json.loads(text)
        except ValueError:
            places = None
        if not isinstance(places, dict):
            listed = ", ".join(f'"{word}"' for word in words)
            raise BadOption(option, text, f'it must be {listed}, or JSON such as {{"orders": 4096}}')
        self.homes = homes_in(places)
        self._places = {topic: self._parse(topic, place) for topic, place in places.items()}

    def _parse(self, topic: str, place: Any) -> Wanted:
        if isinstance(place, str) and place.lower() in _WORDS:
            return place.lower()
        if isinstance(place, int) and not isinstance(place, bool) and place in _KAFKA_WORDS:
            return _KAFKA_WORDS[place]
        epoch = None
        if isinstance(place, dict) and set(place) - {SERVER} == {"epoch", "seq"}:
            epoch, place = place["epoch"], place["seq"]
        if not _is_count(place) or not (epoch is None or _is_count(epoch)):
            raise BadOption(self.option, self._text, f'the offset of "{topic}" must be a seq, a whole number from 0')
        return Cursor(epoch, place)

    def of(self, topic: str) -> Wanted:
        """Where to start or end in this topic."""
        return self._places.get(topic, self._default)

    def is_named(self, topic: str) -> bool:
        """Whether a seq was given for this very topic."""
        return isinstance(self._places.get(topic), Cursor)

    def check_names(self, topics: list[str]) -> None:
        """Refuse offsets of topics that are not read."""
        unknown = sorted(set(self._places) - set(topics))
        if unknown:
            read = ", ".join(topics) or "none"
            raise BadOption(self.option, self._text, f'it names "{unknown[0]}", but the topics read are: {read}')


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def render(cursors: dict[str, Cursor], homes: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Offsets as Spark keeps them, topics in order, with the servers of the topics where there are several."""
    found: dict[str, dict[str, Any]] = {}
    for topic, at in sorted(cursors.items()):
        found[topic] = {"epoch": at.epoch or 0, "seq": at.seq}
        if homes and topic in homes:
            found[topic][SERVER] = homes[topic]
    return found


def homes_in(offsets: Any) -> dict[str, str]:
    """The servers that offsets name for their topics."""
    places = offsets.items() if isinstance(offsets, dict) else ()
    return {topic: str(at[SERVER]) for topic, at in places if isinstance(at, dict) and SERVER in at}


def parse(offsets: Any) -> dict[str, Cursor]:
    """Offsets as Spark gives them back."""
    try:
        return {topic: Cursor(int(at["epoch"]), int(at["seq"])) for topic, at in offsets.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        shown = json.dumps(offsets)[:200]
        raise SourceError(
            f"the checkpoint does not hold offsets of the source topics but {shown}; "
            f"it belongs to another query: give this one a checkpoint directory of its own"
        ) from None
