"""What the tests of `topics` use, shipped for tests of programs that use it.

- `ServerProcess`: a real server in a process of its own, with `Response` for what it answers.
- `MemoryEngine`: the engine in memory, without a server.
- `ManualClock`: a clock that moves only when a test moves it.
- `FakeDisk`: a disk in memory that can lose power and keeps what a real one would.
- `FaultDisk`: any disk, with failures on demand.
"""

from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_disk import FaultDisk
from topics.testing.memory import MemoryEngine
from topics.testing.server import Response, ServerProcess

__all__ = ["FakeDisk", "FaultDisk", "ManualClock", "MemoryEngine", "Response", "ServerProcess"]
