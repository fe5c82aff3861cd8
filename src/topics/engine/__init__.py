"""The engine: topics and the commands on them, without sockets, threads or files.

Guarantees what the API promises about records, queues and routers, whatever the store under it survives. Knows storage,
and no server.

from topics.engine import Engine, Write, Diff
from topics.testing import ManualClock

engine = Engine(ManualClock())
engine.write("jobs", Write.of([{"url": "s3://b/a.png"}]))
engine.diff("jobs", Diff(from_seq=0)).records
"""

from topics.engine.config import ConfigPatch, TopicConfig
from topics.engine.engine import Engine
from topics.engine.limits import Limits
from topics.engine.requests import Delete, Diff, RecordIn, Write

__all__ = ["ConfigPatch", "Delete", "Diff", "Engine", "Limits", "RecordIn", "TopicConfig", "Write"]
