"""Operations: what the library does, written once for threads and for asyncio.

An operation is a generator. It yields what it needs from outside (an answer to a `Request`, a pause, a stream) and gets
it sent in; what it returns is the result. It does no input and output itself, and `run` and `arun` are all the
difference between `Client` and `AsyncClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

from topics.client.transport import blocking, waiting
from topics.client.transport.request import Request

T = TypeVar("T")


class Pause:
    """Ask for some time to pass."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Open:
    """Ask for a stream; what comes back is None, or the answer of a server that refused."""

    __slots__ = ("request",)

    def __init__(self, request: Request) -> None:
        self.request = request


class Read:
    """Ask for what comes next of the stream; nothing means that it has ended."""

    __slots__ = ("timeout_s",)

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s


class Close:
    """Ask for the end of the stream."""

    __slots__ = ()


class Do:
    """Ask for a call that may block, such as one that writes a file."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function


Effect: TypeAlias = Request | Pause | Open | Read | Close | Do
Operation: TypeAlias = Generator[Effect, Any, T]


def _ask(effect: Request | Pause | Open | Read | Close, courier: blocking.Courier | waiting.Courier) -> Any:
    """Ask the courier for what an operation needs: the result, or on asyncio what gives one where there is one."""
    if type(effect) is Request:
        return courier.exchange(effect)
    if type(effect) is Pause:
        return courier.pause(effect.seconds)
    if type(effect) is Open:
        return courier.open(effect.request)
    if type(effect) is Read:
        return courier.read(effect.timeout_s)
    return courier.close_stream()


def run(operation: Operation[T], courier: blocking.Courier) -> T:
    """The result of an operation, in this thread."""
    try:
        effect = next(operation)
        while True:
            try:
                result = effect.function() if isinstance(effect, Do) else _ask(effect, courier)
            except Exception as error:
                effect = operation.throw(error)
            else:
                effect = operation.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        operation.close()


async def arun(operation: Operation[T], courier: waiting.Courier) -> T:
    """The result of an operation, in this task."""
    try:
        effect = next(operation)
        while True:
            try:
                asked = asyncio.to_thread(effect.function) if isinstance(effect, Do) else _ask(effect, courier)
                result = None if asked is None else await asked
            except Exception as error:
                effect = operation.throw(error)
            else:
                effect = operation.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        operation.close()
