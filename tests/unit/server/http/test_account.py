"""The account of buffered bytes: what is counted, what gives way, and that everything is given back."""

from __future__ import annotations

from tests.harness.connection import Client, PathApp, connections_of, request
from topics.server.http.account import SMALL_BYTES, Account, Hold, Share
from topics.server.http.connections import Connections
from topics.server.http.http2 import Http2

MIB = 1 << 20


def connections(app: PathApp, buffered: int) -> Connections:
    made = connections_of(app, Http2, None, buffered)
    made.start()
    return made


def begin_body(client: Client, size: int, declared: int = 8 * MIB) -> None:
    head = request("POST", "/wait", b"x" * declared)[: -declared or None]
    client.send(head)
    for _ in range(size // (64 * 1024)):
        if client.transport.reading:
            client.send(b"x" * (64 * 1024))


def test_an_unfinished_body_counts_until_it_is_answered() -> None:
    """FAIR-3."""
    app = PathApp()
    shared = connections(app, 64 * MIB)
    client = Client(app, connections=shared)
    begin_body(client, 2 * MIB, 3 * MIB)
    assert shared.account.bodies_bytes == 2 * MIB == shared.account.total_bytes
    client.send(b"x" * MIB)
    assert len(app.waiting) == 1
    assert shared.account.bodies_bytes >= 2 * MIB
    app.waiting[0].respond(200, b"{}")
    assert shared.account.total_bytes == 0


def test_a_connection_that_is_lost_gives_everything_back() -> None:
    """FAIR-3."""
    app = PathApp()
    shared = connections(app, 64 * MIB)
    client = Client(app, connections=shared)
    begin_body(client, 2 * MIB)
    client.lose()
    assert shared.account.total_bytes == 0


def test_over_the_bound_a_large_body_is_refused_by_name_and_a_small_request_is_served() -> None:
    """FAIR-3."""
    app = PathApp()
    shared = connections(app, 4 * MIB)
    clients = [Client(app, connections=shared) for _ in range(10)]
    for client in clients:
        begin_body(client, 2 * MIB)
    assert shared.account.total_bytes < 5 * MIB
    refused = [client for client in clients if client.ended]
    assert len(refused) >= 8
    answer = refused[0].replies()[0]
    assert answer.status == 429
    assert answer.headers["retry-after"] == "1"
    assert b"max_buffered_bytes" in answer.body
    bystander = Client(app, connections=shared)
    bystander.send(request("POST", "/small", b"x" * 1000))
    assert bystander.replies()[0].status == 200
    assert shared.account.refused_total == len(refused)


def test_who_holds_the_most_and_does_not_move_makes_room() -> None:
    """FAIR-5: those who stand still pay for the bound, the largest first."""
    app = PathApp()
    shared = connections(app, 8 * MIB)
    large, small, moving = (Client(app, connections=shared) for _ in range(3))
    begin_body(large, 4 * MIB)
    begin_body(small, MIB)
    begin_body(moving, 2 * MIB)
    shared.sweep(1.0)
    assert not large.ended
    moving.send(b"x" * (64 * 1024))
    shared.sweep(2.0)
    assert large.replies()[0].status == 429
    assert not small.ended
    assert not moving.ended


def test_answers_that_are_not_read_count_and_their_client_is_cut_off_where_room_is_needed() -> None:
    """FAIR-5."""
    app = PathApp()
    shared = connections(app, 4 * MIB)
    client = Client(app, connections=shared)
    client.send(request("GET", "/large?100"))
    client.transport.unsent = 4 * MIB
    client.transport.protocol.pause_writing()
    assert shared.account.answers_bytes == 4 * MIB
    shared.sweep(1.0)
    shared.sweep(2.0)
    assert client.transport.aborted
    assert shared.account.refused_total > 0
    client.lose()
    assert shared.account.total_bytes == 0


def test_a_client_that_reads_is_not_counted_any_more() -> None:
    app = PathApp()
    shared = connections(app, 4 * MIB)
    client = Client(app, connections=shared)
    client.transport.unsent = MIB
    client.transport.protocol.pause_writing()
    client.transport.unsent = 0
    client.transport.protocol.resume_writing()
    assert shared.account.total_bytes == 0


def test_a_frame_that_many_hold_counts_once() -> None:
    """FAIR-5."""
    account = Account()
    share = Share(account, MIB)
    share.keep()
    share.keep()
    assert account.streams_bytes == account.total_bytes == MIB
    share.release()
    assert account.total_bytes == MIB
    share.release()
    assert account.total_bytes == 0


def test_an_answer_may_take_a_part_of_what_is_free() -> None:
    """FAIR-4: many at a time approach the bound and do not pass it by more than their least."""
    account = Account(64 * MIB)
    holds = [Hold(account) for _ in range(500)]
    for hold in holds:
        if account.share_bytes() > SMALL_BYTES:
            hold.set_answers(account.share_bytes())
    assert 60 * MIB < account.total_bytes <= 64 * MIB
    for hold in holds:
        hold.release()
    assert account.total_bytes == account.answers_bytes == 0
