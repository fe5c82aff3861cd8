"""Values that are clamped and not refused, at their bounds and beyond, on a clock that the test moves."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness.loop import ManualLoop
from topics.engine import Engine
from topics.engine.requests import Write
from topics.server.api.attempts import Attempts
from topics.server.api.diff import DiffHandler
from topics.server.auth import Keys
from topics.server.delivery.view import WatchOptions, view_of
from topics.server.delivery.watch import Watch
from topics.server.flow.slots import Slots
from topics.server.http.query import Query
from topics.settings import Settings
from topics.testing import ManualClock

MIB = 1 << 20


def asked(body: object, name: str = "t") -> Any:
    """An exchange that writes down its answer."""
    route = SimpleNamespace(name=name, name_bytes=name.encode(), principal=Keys().anyone, query=Query(""))
    exchange = SimpleNamespace(
        head=SimpleNamespace(route=route, accepts_gzip=False),
        body=json.dumps(body).encode(),
        elapsed_ms=0.0,
        started_ns=0,
        answers=[],
        on_disconnect=None,
        answered=False,
    )
    exchange.respond = lambda status, body: exchange.answers.append((status, body))
    exchange.respond_parts = lambda parts: exchange.answers.append(b"".join(parts))
    return exchange


@pytest.mark.parametrize(("wait_ms", "waited_ms"), [(1, 1), (30_000, 30_000), (30_001, 30_000), (2**32 - 1, 30_000)])
def test_long_poll_waits_30_s_at_most(wait_ms: int, waited_ms: int) -> None:
    """READ-12."""
    clock = ManualClock()
    engine, loop = Engine(clock), ManualLoop(clock)
    engine.write("t", Write.of([1]))
    exchange = asked({"from_seq": 1, "wait_ms": wait_ms})
    DiffHandler(engine, cast("Any", loop), Attempts(cast("Any", None))).diff(exchange)
    loop.advance(waited_ms - 1)
    assert not exchange.answers
    loop.advance(1)
    assert len(exchange.answers) == 1


def test_long_poll_reads_on_after_what_it_left_out() -> None:
    """READ-13: own records move the cursor while the read waits, so they do not fill the window of what follows."""
    clock = ManualClock()
    engine, loop = Engine(clock), ManualLoop(clock)
    engine.write("t", Write.of([1]))
    exchange = asked({"from_seq": 1, "wait_ms": 1000, "limit": 1, "node": "me"})
    DiffHandler(engine, cast("Any", loop), Attempts(cast("Any", None))).diff(exchange)
    engine.write("t", Write.of([2], node="me"))
    loop.advance(10)
    assert not exchange.answers
    engine.write("t", Write.of([3]))
    loop.advance(10)
    assert b'"data":3' in exchange.answers[0]


@pytest.mark.parametrize(
    ("heartbeat_ms", "kept"),
    [(0, 1000), (999, 1000), (1000, 1000), (60_000, 60_000), (60_001, 60_000), (2**63, 60_000)],
)
def test_heartbeat_is_between_1_s_and_60_s(heartbeat_ms: int, kept: int) -> None:
    """WATCH-11."""
    engine = Engine(ManualClock())
    engine.write("t", Write.of([1]))
    settings = Settings()
    delivery = SimpleNamespace(refresh=lambda: None, tick_ms=0, now_ms=0)
    watch = Watch(engine, cast("Any", delivery), Slots(settings), settings)
    exchange = asked({"topics": {"t": {}}, "heartbeat_ms": heartbeat_ms})
    watch.create(exchange)
    wid = json.loads(exchange.answers[0][1])["wid"]
    assert watch.sessions.find(wid, 0).heartbeat_ms == kept


@pytest.mark.parametrize(
    ("limit", "size", "limit_kept", "size_kept"),
    [
        (0, 0, 256, MIB),
        (1, 1, 1, 1),
        (1000, 8 * MIB, 1000, 8 * MIB),
        (1001, 8 * MIB + 1, 1000, 8 * MIB),
        (2**32 - 1, 2**64 - 1, 1000, 8 * MIB),
        (0, WatchOptions().max_batch_bytes, 256, 256 * 1024),
    ],
)
def test_frame_is_bounded_by_limit_and_bytes(limit: int, size: int, limit_kept: int, size_kept: int) -> None:
    """WATCH-10: `limit` defaults to 256; `max_batch_bytes` to 256 KiB, 0 is 1 MiB, and it is clamped to 8 MiB."""
    view = view_of(WatchOptions(limit=limit, max_batch_bytes=size), Settings().max_limit)
    assert (view.plain.limit, view.plain.bytes_max) == (limit_kept, size_kept)
