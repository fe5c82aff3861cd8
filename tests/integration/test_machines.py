"""The machines of cluster tests: the instrument."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.api import until
from tests.harness.machines import ROOT, Machines, answers, machines, refused

pytestmark = pytest.mark.skipif(refused() is not None, reason=str(refused()))


@pytest.fixture
def room() -> Iterator[Machines]:
    with machines("one", "two") as made:
        yield made


def test_machines_reach_each_other_and_share_nothing(room: Machines, tmp_path: Path) -> None:
    one, two = room.add("one", ROOT / ".venv"), room.add("two", ROOT / ".venv", ROOT / "src")
    one.path("/tmp/own").write_text("of one")
    one.start(sys.executable, "-m", "http.server", "8000", log=tmp_path / "log")
    answers(one, 8000, "it serves")
    fetch = "import urllib.request; print(urllib.request.urlopen('http://one:8000/own').read().decode())"
    assert two.run(sys.executable, "-c", fetch) == "of one\n"
    assert two.run("hostname").strip() == "two"
    assert two.run("ls", "/tmp").split() == ([ROOT.parts[2]] if ROOT.is_relative_to("/tmp") else [])
    assert not one.path(str(ROOT / "src")).exists()
    assert two.path(str(ROOT / "src" / "topics")).exists()
    with pytest.raises(AssertionError, match="Read-only"):
        two.run("touch", ROOT / "src" / "new")
    assert not Path("/tmp/own").exists()


def test_what_runs_on_a_machine_is_killed_alone_and_ends_with_it(room: Machines, tmp_path: Path) -> None:
    one, two = room.add("one"), room.add("two")
    kept = two.start("sleep", "1000", log=tmp_path / "log")
    killed = one.start("sh", "-c", "sleep 1000 & sleep 1001", log=tmp_path / "log")
    until(lambda: len(one.pids("sleep 100")) >= 2 and two.pids("sleep 1000"), "all of them run")
    one.path("/tmp/own").write_text("stays")
    assert one.kill("sleep 1000") >= 1
    one.kill()
    killed.wait(30)
    assert one.run("cat", "own") == "stays"
    assert kept.poll() is None
    room.remove("two")
    assert kept.poll() is not None
