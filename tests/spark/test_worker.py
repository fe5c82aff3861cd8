"""What the source does to the processes that Spark keeps for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


def test_what_a_worker_has_loaded_is_left_out_of_its_collections_once() -> None:
    first, more = frozen("pyspark.daemon")
    assert first > 1000
    assert more <= 0


def test_a_process_of_the_user_is_left_as_it_is() -> None:
    assert frozen("notebook") == [0, 0]
