"""Values that are clamped and not refused, at their bounds and beyond, on a clock that the test moves."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness.loop import ManualLoop
from topics.engine import Engine
from topics.engine.requests import Write
from topics.errors import Throttled
from topics.server.api.attempts import Attempts
from topics.server.api.diff import DiffHandler
from topics.server.auth import Keys
from topics.server.delivery.view import WatchOptions, view_of
from topics.server.delivery.watch import Watch
from topics.server.flow.slots import Cap, Slots
from topics.server.http.account import SMALL_BYTES, Account, Hold
from topics.server.http.query import Query
from topics.server.http.turns import Turns
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
        begin_wait=lambda: None,
        end_wait=lambda: None,
        carrier=SimpleNamespace(clogged=False, gone=False, in_turn=lambda call: call()),
    )
    exchange.respond = lambda status, body: exchange.answers.append((status, body))
    exchange.respond_parts = lambda parts, **options: exchange.answers.append(b"".join(parts))
    return exchange


def handler(engine: Engine, loop: Any, account: Account | None = None) -> DiffHandler:
    turns = Turns(loop, engine.clock.elapsed_ns)
    return DiffHandler(engine, loop, Attempts(cast("Any", None)), turns, account or Account())


@pytest.mark.parametrize(("wait_ms", "waited_ms"), [(1, 1), (30_000, 30_000), (30_001, 30_000), (2**32 - 1, 30_000)])
def test_long_poll_waits_30_s_at_most(wait_ms: int, waited_ms: int) -> None:
    """READ-12."""
    clock = ManualClock()
    engine, loop = Engine(clock), ManualLoop(clock)
    engine.write("t", Write.of([1]))
    exchange = asked({"from_seq": 1, "wait_ms": wait_ms})
    handler(engine, loop).diff(exchange)
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
    handler(engine, loop).diff(exchange)
    engine.write("t", Write.of([2], node="me"))
    loop.advance(10)
    assert not exchange.answers
    engine.write("t", Write.of([3]))
    loop.advance(10)
    assert b'"data":3' in exchange.answers[0]


def test_long_poll_waits_on_while_its_client_does_not_read_or_too_much_is_buffered() -> None:
    """FAIR-4: what nobody reads is not made."""
    clock = ManualClock()
    engine, loop, account = Engine(clock), ManualLoop(clock), Account(1 << 20)
    engine.write("t", Write.of([1]))
    exchange = asked({"from_seq": 1, "wait_ms": 10_000})
    exchange.carrier.clogged = True
    handler(engine, loop, account).diff(exchange)
    engine.write("t", Write.of([2]))
    loop.advance(1000)
    assert not exchange.answers
    exchange.carrier.clogged = False
    hold = Hold(account)
    hold.set_answers(1 << 20)
    loop.advance(1000)
    assert not exchange.answers
    hold.release()
    loop.advance(1000)
    assert b'"data":2' in exchange.answers[0]


def test_a_large_read_waits_until_its_client_has_taken_its_earlier_answers() -> None:
    """FAIR-4: it is not even read before."""
    clock = ManualClock()
    engine, loop = Engine(clock), ManualLoop(clock)
    engine.write("t", Write.of([1]))
    exchange = asked({"max_batch_bytes": 8 << 20})
    exchange.carrier.clogged = True
    handler(engine, loop).diff(exchange)
    loop.advance(1000)
    assert not exchange.answers
    exchange.carrier.clogged = False
    loop.advance(1000)
    assert b'"data":1' in exchange.answers[0]


def test_a_large_read_whose_client_is_gone_is_not_read() -> None:
    """FAIR-4: it is forgotten when it would be looked at again."""
    clock = ManualClock()
    engine, loop = Engine(clock), ManualLoop(clock)
    engine.write("t", Write.of([1]))
    exchange = asked({"max_batch_bytes": 8 << 20})
    exchange.carrier.clogged = True
    handler(engine, loop).diff(exchange)
    exchange.carrier.gone, exchange.carrier.clogged = True, False
    loop.advance(1000)
    assert not exchange.answers
    turns = loop.turns
    loop.advance(1000)
    assert loop.turns == turns, "nothing looks again"


def test_the_fuller_the_account_the_smaller_an_answer() -> None:
    """FAIR-4: a diff takes a part of what is free, and a large one is refused by name where nothing is."""
    clock = ManualClock()
    engine, loop, account = Engine(clock), ManualLoop(clock), Account(32 << 20)
    engine.write("t", Write.of(["x" * 100_000] * 20))
    hold = Hold(account)
    sizes = []
    for held in (0, 16 << 20, 31 << 20):
        hold.set_answers(held)
        exchange = asked({"max_batch_bytes": 4 << 20})
        handler(engine, loop, account).diff(exchange)
        sizes.append(len(exchange.answers[0]))
    assert sizes[0] > 2_000_000 > sizes[1] > 1_000_000 > 2 * SMALL_BYTES > sizes[2]
    hold.set_answers(32 << 20)
    with pytest.raises(Throttled) as refusal:
        handler(engine, loop, account).diff(asked({"max_batch_bytes": 1 << 20}))
    assert refusal.value.detail["limit"] == "max_buffered_bytes"
    engine.write("t", Write.of([1]))
    small = asked({"from_seq": 20})
    handler(engine, loop, account).diff(small)
    assert b'"data":1' in small.answers[0]


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
    view = view_of(
        WatchOptions(limit=limit, max_batch_bytes=size), Settings().max_limit, None, Cap("max_subscription_bytes", 0)
    )
    assert (view.plain.limit, view.plain.bytes_max) == (limit_kept, size_kept)
