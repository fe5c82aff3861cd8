"""Delay: jobs that are produced now and delivered later (QUEUE-26).

A record of a write to a queue may have `delay_ms` or `deliver_at`. It is in the log at once, so it can be read, counted
and deleted, which cancels it; but no claim gets it before its time. The times are in the frame of the write, so they
survive a restart. On a log both are accepted and have no effect, like the queue fields of a config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.errors import InvalidRequest

if TYPE_CHECKING:
    from topics.engine.requests import RecordIn
    from topics.engine.topic import Jobs
    from topics.engine.write.ticket import OnDone, Ticket


def delays_of(records: list[RecordIn], now_ms: int) -> list[tuple[int, int]]:
    """(index, due_ms) of each record that is to be delivered later; raises InvalidRequest."""
    delays = []
    for i, record in enumerate(records):
        if record.delay_ms is None and record.deliver_at is None:
            continue
        field = f"records[{i}].{'delay_ms' if record.deliver_at is None else 'deliver_at'}"
        if record.delay_ms is not None and record.deliver_at is not None:
            raise InvalidRequest(f"{field}: give either delay_ms or deliver_at, not both", field=field)
        due_ms = record.deliver_at if record.deliver_at is not None else now_ms + (record.delay_ms or 0)
        if due_ms > now_ms:
            delays.append((i, due_ms))
    return delays


def when_visible(jobs: Jobs, delays: list[tuple[int, int]], on_done: OnDone | None) -> OnDone:
    """What a write does when it is committed: hide its delayed jobs, then answer."""

    def done(ticket: Ticket) -> None:
        if ticket.error is None:
            for i, due_ms in delays:
                jobs.delay(ticket.first_seq + i, due_ms)
        if on_done is not None:
            on_done(ticket)

    return done
