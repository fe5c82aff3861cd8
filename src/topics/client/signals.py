"""Signals: SIGTERM ends everything that runs in the main thread and wants to be ended by it, for threads and asyncio.

Several workers and consumers may run on one event loop, and all of them are asked to end. What was there before is put
back afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

Stop: TypeAlias = Callable[[], None]

_stops: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Stop]]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def stops_thread(stop: Stop, wanted: bool = True) -> Iterator[None]:
    """SIGTERM calls `stop` inside, where this is the main thread and it is wanted."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop())
    try:
        yield
    finally:
        _put_back(before)


@contextlib.contextmanager
def stops_task(stop: Stop, wanted: bool = True) -> Iterator[None]:
    """SIGTERM calls `stop` inside, where the event loop can catch signals and it is wanted."""
    loop = asyncio.get_running_loop()
    stops = _stops.setdefault(loop, [])
    before = signal.getsignal(signal.SIGTERM)
    if wanted and not stops:
        try:
            loop.add_signal_handler(signal.SIGTERM, _stop_all, loop)
        except (NotImplementedError, RuntimeError, ValueError):
            wanted = False
    if not wanted:
        yield
        return
    stops.append(stop)
    try:
        yield
    finally:
        stops.remove(stop)
        if not stops:
            loop.remove_signal_handler(signal.SIGTERM)
            _put_back(before)


def _stop_all(loop: asyncio.AbstractEventLoop) -> None:
    for stop in list(_stops.get(loop, ())):
        stop()


def _put_back(before: signal._HANDLER) -> None:
    # None: it was not set by Python, and only what has set it could do so again.
    if before is not None:
        signal.signal(signal.SIGTERM, before)
