"""Answers that most handlers give alike: a struct as JSON with its `performance`, and the outcome of a command."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Final

import msgspec

from topics.engine.promise import Receipt
from topics.server.api.bodies import Body
from topics.server.http.exchange import Exchange

_encode: Final = msgspec.json.Encoder().encode


def answer(exchange: Exchange, status: int, result: Any, timing: dict[str, float] | None = None) -> None:
    """Answer with a struct or dict as a JSON object that carries `performance`."""
    exchange.respond(status, encoded(exchange, result, timing))


def encoded(exchange: Exchange, result: Any, timing: dict[str, float] | None = None) -> bytes:
    """A struct or dict as a JSON object that carries `performance`."""
    body = _encode(result)
    joint = b"," if len(body) > 2 else b""
    if timing is None:
        took_ms = (perf_counter_ns() - exchange.started_ns) / 1e6
        return b'%b%b"performance":{"server_total_ms":%.3f}}' % (body[:-1], joint, took_ms)
    return b'%b%b"performance":%b}' % (body[:-1], joint, _encode({"server_total_ms": exchange.elapsed_ms, **timing}))


def separated(texts: list[bytes]) -> list[bytes]:
    """The texts with commas between them. A large answer is joined once, or never, and not before for its commas."""
    if len(texts) < 2:
        return texts
    spread = [b","] * (2 * len(texts) - 1)
    spread[::2] = texts
    return spread


def answer_put(receipt: Receipt, body: Body[Any]) -> None:
    """Answer a PUT, and name the fields that it ignored: a typo in a config would otherwise show only when it hurts."""
    status = 201 if receipt.result.created else 200
    if unknown := body.unknown(receipt.context.body):
        receipt.result = {**msgspec.structs.asdict(receipt.result), "unknown_fields": unknown}
    answer_receipt(receipt, status)


def answer_receipt(receipt: Receipt, status: int = 200) -> None:
    """Answer with the outcome of a command, whose receipt carries the exchange."""
    exchange: Exchange = receipt.context
    if receipt.error is not None:
        exchange.fail(receipt.error)
        return
    timing = {"wal_append_ms": round(receipt.write_ns / 1e6, 3), "fsync_ms": round(receipt.sync_ns / 1e6, 3)}
    answer(exchange, status, receipt.result, timing)
