"""What the tests of `topics` use, shipped so that yours can: a clock that stands still, a real server process."""

from topics.testing.clock import ManualClock
from topics.testing.server import Response, ServerProcess

__all__ = ["ManualClock", "Response", "ServerProcess"]
