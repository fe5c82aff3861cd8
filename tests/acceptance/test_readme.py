"""The README's walk-through gives what the README prints."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from topics.testing import ServerProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_walk_through_prints_what_the_readme_shows(readme: ModuleType) -> None:
    """After a change of the API's answers run `.venv/bin/python tools/readme.py`."""
    steps = readme.steps((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(steps) >= 8

    with ServerProcess() as server:
        for command, shown in steps:
            printed = readme.run(command, server.url)
            assert readme.without_times(printed) == readme.without_times(shown), command


def test_only_times_may_differ_from_what_is_shown(readme: ModuleType) -> None:
    shown = '{"$ts":17,"config":{"lease_ms":30000},"count":1,"performance":{"server_total_ms":0.4}}'

    assert readme.without_times(shown) == readme.without_times(shown.replace("17", "18").replace("0.4", "12"))
    for was, now in (("30000", "1"), ('"count":1', '"count":2')):
        assert readme.without_times(shown) != readme.without_times(shown.replace(was, now))
