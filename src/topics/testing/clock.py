"""A clock that moves only when the test moves it."""

from __future__ import annotations

from typing import Final

START_MS: Final = 1_750_000_000_000


class ManualClock:
    """Time under the test's control: it does not move until `advance` or `set` moves it."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = self._began_ms = now_ms
        self._elapsed_ns = 0

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""
        return self._now_ms

    def steady_ms(self) -> int:
        """Milliseconds on the scale of deadlines: `set` does not move them."""
        return self._began_ms + self._elapsed_ns // 1_000_000

    def elapsed_ns(self) -> int:
        """Monotonic nanoseconds since an arbitrary start."""
        return self._elapsed_ns

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        assert ms >= 0, "time passes forwards; use set() to step the wall clock back"
        self._now_ms += ms
        self._elapsed_ns += ms * 1_000_000

    def set(self, now_ms: int) -> None:
        """Step the wall clock to `now_ms`, forwards or backwards, as an operator or NTP may."""
        self._now_ms = now_ms
