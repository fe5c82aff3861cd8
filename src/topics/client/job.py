"""Job: a record of a queue that is leased to this client until its `deadline`."""

from __future__ import annotations

from typing import Generic, TypeVar

from topics.client.record import Record, shown

T = TypeVar("T")


class Job(Record[T], Generic[T], kw_only=True, eq=False):
    """A job. Ack it when it is done; `deliveries` counts how often it was claimed, this time included.

    A worker sets `lost` where the lease has ended all the same: another worker may be at it.
    """

    lease_id: str
    deadline: int
    deliveries: int
    lost: bool = False

    def __repr__(self) -> str:
        return f"Job(topic={self.topic!r}, seq={self.seq}, deliveries={self.deliveries}, data={shown(self.raw)})"
