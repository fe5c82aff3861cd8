"""LargeWrites: writes that are too large to be decoded at once take turns on the loop, a millisecond each.

A large write is taken from its body part by part (slicing.py) and, where it is larger still, laid out as the Block that
it will be (`Draft`); then a thread makes the log ready for it. What is left to do in one step is to give it its seqs
and its checksums, and to hand it to the kernel. Nothing of it is seen by anyone before that: it is one Block, all or
nothing, as any write.

At most `ACTIVE_MAX` are under way, in turns; the others wait, compressed where they came so. That bounds the memory:
what waits has been counted when it was received, and what is under way takes about as much as its inflated body.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, Final, TypeVar

from topics.engine import Engine
from topics.engine.requests import NO_RAW, Write
from topics.engine.write import batch as batches
from topics.errors import Internal, TopicsError
from topics.server.api.attempts import RunThen
from topics.server.api.slicing import PART_BYTES, Slicing
from topics.server.http.body import Rest
from topics.storage.block import Draft
from topics.storage.job import Job

W = TypeVar("W", bound=Write)

ACTIVE_MAX: Final = 2
TURN_NS: Final = 1_000_000
LAID_OUT_MIN_BYTES: Final = 1 << 20
"""A write with more text than this is laid out before it is handed over."""
STEP_BYTES: Final = 1 << 20
"""How much text is laid out at a time."""

OnTaken = Callable[[W, Write, list[str]], None]
"""Gets the write as it was decoded, the same as the engine takes it, and the names of its unknown fields."""

log = logging.getLogger("topics.server")


class LargeWrites:
    """The large writes that are under way, see the module."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, engine: Engine, envelope_max_bytes: int, run_then: RunThen
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._limits = engine.limits
        self._run_then = run_then
        self._envelope_max = envelope_max_bytes
        self._active: deque[_Taking] = deque()
        self._waiting: deque[_Taking] = deque()
        # Those that are under way and wait for a thread.
        self._resting = 0
        self._due = False

    def __len__(self) -> int:
        """How many there are."""
        return len(self._active) + len(self._waiting) + self._resting

    def take(
        self,
        name: str,
        body: tuple[bytes, Rest],
        decode: Callable[[bytes], tuple[W, list[str]]],
        on_taken: OnTaken[W],
        on_failed: Callable[[TopicsError], None],
        traceparent: str | None = None,
    ) -> None:
        """Take a write from the beginning and the rest of its body, then call one of the two, later.

        The log is made ready for the topic `name`; empty where it is not known yet. `decode` turns what surrounds the
        records into a write with none, and the names of its unknown fields. A `traceparent` is kept with the records.
        """
        slicing = Slicing(self._limits, self._envelope_max, traceparent=traceparent)
        steps = self._steps(name, slicing, *body, decode, on_taken)
        full = len(self._active) + self._resting >= ACTIVE_MAX
        (self._waiting if full else self._active).append(_Taking(steps, on_failed))
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if self._active and not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        taking = self._active.popleft()
        more = taking.go_on(perf_counter_ns() + TURN_NS)
        if not isinstance(more, bool):
            self._resting += 1
            self._run_then(more, lambda: self._rested(taking))
        elif more:
            self._active.append(taking)
        elif self._waiting:
            self._active.append(self._waiting.popleft())
        self._ask_for_turn()

    def _rested(self, taking: _Taking) -> None:
        self._resting -= 1
        self._active.append(taking)
        self._ask_for_turn()

    def _steps(
        self,
        name: str,
        slicing: Slicing,
        part: bytes,
        rest: Rest,
        decode: Callable[[bytes], tuple[W, list[str]]],
        on_taken: OnTaken[W],
    ) -> Iterator[Job | None]:
        for at in range(0, len(part), PART_BYTES):
            slicing.feed(part[at : at + PART_BYTES])
            yield None
        while not rest.done:
            part = rest.take(PART_BYTES)
            slicing.feed(part)
            yield None
        write, unknown = decode(slicing.finish())
        unknown += slicing.unknown
        size = sum([part.size_bytes for part in slicing.columns])
        if size <= LAID_OUT_MIN_BYTES or len(slicing.records) < 2:
            write.records = slicing.records
            laid_out: Write = write
        else:
            laid_out = yield from self._lay_out(slicing, write)
            yield self._engine.expect_job(name, size)
        on_taken(write, laid_out, unknown)

    def _lay_out(self, slicing: Slicing, write: Write) -> Generator[Job | None, None, Write]:
        records, parts = slicing.records, slicing.columns
        if write.node is not None:
            batches.add_node(parts, write.node, self._limits)
        whole = batches.join(parts)
        parts.clear()
        meta_lengths = None if whole.metas is None else [len(meta or b"") for meta in whole.metas]
        draft = Draft(list(map(len, whole.datas)), whole.nodes, whole.tags, meta_lengths)
        yield None
        metas, datas = whole.metas or [], list(whole.datas)
        whole.datas, whole.metas, whole.draft = range(len(records)), None, draft  # type: ignore[assignment]
        for some in _by_size(metas):
            draft.add(filter(None, metas[some]))
            yield None
        metas.clear()
        for some in _by_size(datas):
            draft.add(datas[some])
            # What is in the draft need not be anywhere else: the parts that it was decoded from go one by one.
            datas[some] = [b""] * (some.stop - some.start)
            for record in records[some]:
                record.data = record.meta = NO_RAW
            yield None
        fields: dict[str, Any] = {name: getattr(write, name) for name in Write.__struct_fields__}
        return batches.CheckedWrite(**fields | {"records": records}, batch=whole)


class _Taking:
    """One large write and how far it is."""

    __slots__ = ("_on_failed", "_steps")

    def __init__(self, steps: Iterator[Job | None], on_failed: Callable[[TopicsError], None]) -> None:
        self._steps = steps
        self._on_failed = on_failed

    def go_on(self, until_ns: int) -> bool | Job:
        """Do the next steps until this time; whether there are more, or what has to be executed before them."""
        try:
            for job in self._steps:
                if job is not None:
                    return job
                if perf_counter_ns() >= until_ns:
                    return True
        except TopicsError as error:
            self._on_failed(error)
        except Exception:
            log.exception("a large write failed")
            self._on_failed(Internal())
        return False


def _by_size(texts: Sequence[bytes | None]) -> Iterator[slice]:
    """All of the texts, in groups of about `STEP_BYTES`."""
    start = size = 0
    for i in range(len(texts)):
        size += len(texts[i] or b"")
        if size >= STEP_BYTES:
            yield slice(start, i + 1)
            start, size = i + 1, 0
    if start < len(texts):
        yield slice(start, len(texts))
