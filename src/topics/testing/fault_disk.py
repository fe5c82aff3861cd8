"""FaultDisk: any disk, with failures on demand."""

from __future__ import annotations

import errno
from typing import Any

from topics.storage.disk import Disk
from topics.testing.fake_disk import FakeDisk


class FaultDisk:
    """Any disk, failing on demand. Calls without a planned failure go straight through.

    `fail("write", 3)` makes the third `write` from now raise EIO; `left_bytes` lets that many bytes of a failing write
    through first. A failing `sync` makes the kernel forget the dirty pages of that file, as Linux does.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._plans: dict[str, list[tuple[int, int, int]]] = {}
        self._counts: dict[str, int] = {}

    def fail(self, operation: str, nth: int = 1, code: int = errno.EIO, *, left_bytes: int = 0) -> None:
        """Plan a failure of the nth next call of `operation`."""
        at = self._counts.get(operation, 0) + nth
        self._plans.setdefault(operation, []).append((at, code, left_bytes))

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._disk, name)
        if not callable(target) or name.startswith("_"):
            return target

        def call(*args: Any, **options: Any) -> Any:
            count = self._counts[name] = self._counts.get(name, 0) + 1
            for at, code, left_bytes in self._plans.get(name, ()):
                if at == count:
                    self._break(name, args, left_bytes)
                    raise OSError(code, f"planned failure of {name} {count}")
            return target(*args, **options)

        return call

    def _break(self, name: str, args: tuple[Any, ...], left_bytes: int) -> None:
        if name == "write" and left_bytes:
            handle, offset, data = args
            self._disk.write(handle, offset, bytes(data)[:left_bytes])
        if name == "sync" and isinstance(self._disk, FakeDisk):
            self._disk.forget_dirty(args[0])
