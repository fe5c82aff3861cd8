"""Backoff: how long a job that was given back stays hidden, where its worker does not say (QUEUE-33).

The pause doubles with each delivery, from `backoff_ms` up to `backoff_max_ms`. Jobs that failed together would come
back together, so each waits up to a quarter less. How much less follows from its seq and its delivery, so that the same
job at the same moment has the same pause wherever it is worked out.
"""

from __future__ import annotations

from typing import Final

from topics.engine.config import TopicConfig

_DOUBLINGS_MAX: Final = 40
_MIX: Final = 0x9E3779B97F4A7C15
_STEPS: Final = 1 << 16


def pause_ms(config: TopicConfig, seq: int, deliveries: int) -> int:
    """How long the job stays hidden after this many deliveries."""
    if not config.backoff_ms:
        return 0
    longest = max(config.backoff_ms, config.backoff_max_ms)
    pause = min(longest, config.backoff_ms << min(max(deliveries, 1) - 1, _DOUBLINGS_MAX))
    mixed = ((seq * 2 + deliveries) * _MIX & (1 << 64) - 1) >> 48
    return pause - pause * mixed // (4 * _STEPS)
