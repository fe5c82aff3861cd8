"""Every operation of the API, by method and path. The table of routes says which keys may use each (routes.py)."""

from __future__ import annotations

from typing import Final

from topics.server.openapi.operation import Operation
from topics.server.openapi.operations import backups, probes, queues, records, routers, streams, topics

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    **topics.OPERATIONS,
    **records.OPERATIONS,
    **queues.OPERATIONS,
    **routers.OPERATIONS,
    **streams.OPERATIONS,
    **backups.OPERATIONS,
    **probes.OPERATIONS,
}
