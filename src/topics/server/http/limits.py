"""ConnectionLimits: what one client may cost the connection layer."""

from __future__ import annotations

from typing import Final

import msgspec

REFUSED_MAX: Final = 256
"""How many connections over `max_connections` may get an answer at the same time; any more are cut without one."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a connection. Times are milliseconds; `max_connections` 0 is unlimited."""

    max_body_bytes: int = 64 * 1024 * 1024
    max_header_bytes: int = 32 * 1024
    max_headers: int = 100
    header_timeout_ms: int = 10_000
    """From the first byte of a head to its last."""
    body_timeout_ms: int = 30_000
    """How long the next `intake.PROGRESS_BYTES` of a body, or its rest if that is less, may take to arrive."""
    idle_timeout_ms: int = 75_000
    """How long a kept-alive connection may stay silent between requests."""
    write_timeout_ms: int = 30_000
    """How long a client may leave answers unread before it is cut off. Streams have their own rule."""
    max_connections: int = 20_000
    max_refused: int = REFUSED_MAX
