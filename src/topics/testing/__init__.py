"""What the tests of `topics` use, shipped for tests of programs that use it.

- `server`: a pytest fixture, a real server for one test (`from topics.testing import server` in a `conftest.py`).
- `ServerProcess`: the same in a `with` block, with `Response` for what it answers.
- `MemoryEngine`: the engine in memory, without a server.
- `ManualClock`: a clock that moves only when the test moves it.
- `FakeDisk`: a disk in memory that can lose power and keeps what a real one would.
- `FaultDisk`: any disk, with failures on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_disk import FaultDisk
from topics.testing.memory import MemoryEngine
from topics.testing.process import Response, ServerProcess

if TYPE_CHECKING:
    from topics.testing.fixtures import server

__all__ = ["FakeDisk", "FaultDisk", "ManualClock", "MemoryEngine", "Response", "ServerProcess", "server"]


def __getattr__(name: str) -> Any:
    # Only a fixture needs pytest, which is no dependency of this package.
    if name == "server":
        from topics.testing.fixtures import server

        return server
    raise AttributeError(f"module 'topics.testing' has no attribute {name!r}")
