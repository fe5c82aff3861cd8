"""What the tests of `topics` use, shipped so that yours can: a manual clock, a real server process, disks that fail."""

from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_disk import FaultDisk
from topics.testing.server import Response, ServerProcess

__all__ = ["FakeDisk", "FaultDisk", "ManualClock", "Response", "ServerProcess"]
