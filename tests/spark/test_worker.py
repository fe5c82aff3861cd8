"""What the source does to the processes that Spark keeps for it."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from topics.spark import worker

pytestmark = pytest.mark.spark

ASK = """
import gc, sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
from topics.spark import worker
worker.freeze_loaded()
frozen = gc.get_freeze_count()
later = [[] for _ in range(1000)]
worker.freeze_loaded()
print(frozen, gc.get_freeze_count() - frozen)
"""


def frozen(main: str) -> list[int]:
    """How many objects are frozen after one call in a process with this main module, and how many more after two."""
    found = subprocess.run([sys.executable, "-c", ASK, main], check=True, capture_output=True, text=True)
    return [int(count) for count in found.stdout.split()]


@pytest.mark.parametrize("main", [worker.SPARKS_DAEMON, worker.DAEMON])
def test_what_a_worker_has_loaded_is_left_out_of_its_collections_once(main: str) -> None:
    first, more = frozen(main)
    assert first > 1000
    assert more <= 0


def test_a_process_of_the_user_is_left_as_it_is() -> None:
    assert frozen("notebook") == [0, 0]


def test_a_worker_whose_spark_has_gone_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def writes_to_nobody(*_: object) -> int:
        raise BrokenPipeError

    assert worker.quiet(writes_to_nobody)(None, True) == 1
    assert worker.quiet(lambda *_: 0)(None, True) == 0
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(worker.SPARKS_DAEMON, None)
    vars(main)["worker"] = writes_to_nobody
    monkeypatch.setitem(sys.modules, "__main__", main)
    worker.end_quietly()
    assert vars(main)["worker"](None, True) == 1


def test_a_program_of_the_user_keeps_what_it_calls_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    vars(main)["worker"] = print
    monkeypatch.setitem(sys.modules, "__main__", main)
    worker.end_quietly()
    assert vars(main)["worker"] is print
