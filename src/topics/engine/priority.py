"""Effective priority (the PRIORITY rules): which topic the scheduler serves first.

A manual `priority` replaces the recency term; otherwise a topic that was consumed recently ranks up to 500 higher,
halving every 30 s and nothing after 5 min. Waiting for delivery adds 100 per second, at most 1000 after 10 s, so that
no topic starves. It orders delivery only: never seq order, retention or what is visible. Integers throughout: 2^-x
comes from a table of 64 steps per half-life, as 16-bit fixed point.
"""

from __future__ import annotations

from typing import Final

AUTO_MAX: Final = 500
HALF_LIFE_MS: Final = 30_000
AUTO_FLOOR_MS: Final = 300_000
AGE_RATE_PER_S: Final = 100
AGE_CAP_MS: Final = 10_000

_STEPS: Final = 64
_BITS: Final = 16
_HALVING: Final = tuple(round(2 ** (_BITS - step / _STEPS)) for step in range(_STEPS))


def auto_recency(elapsed_ms: int) -> int:
    """The recency term of a topic that was consumed `elapsed_ms` ago."""
    if elapsed_ms <= 0:
        return AUTO_MAX
    if elapsed_ms >= AUTO_FLOOR_MS:
        return 0
    halvings, rest_ms = divmod(elapsed_ms, HALF_LIFE_MS)
    shift = _BITS + halvings
    return (AUTO_MAX * _HALVING[rest_ms * _STEPS // HALF_LIFE_MS] + (1 << (shift - 1))) >> shift


def age_boost(waited_ms: int) -> int:
    """The ageing term of a topic that has waited `waited_ms` for delivery."""
    return AGE_RATE_PER_S * max(0, min(waited_ms, AGE_CAP_MS)) // 1000


def effective_priority(
    priority: int | None, auto_priority: bool, last_consumed_ms: int | None, now_ms: int, waited_ms: int = 0
) -> int:
    """The priority that the scheduler uses now."""
    if priority is not None:
        base = priority
    elif auto_priority and last_consumed_ms is not None:
        base = auto_recency(now_ms - last_consumed_ms)
    else:
        base = 0
    return base + age_boost(waited_ms)
