"""One chromium for the tests of the console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.console import CHROMIUM, Visit, fill
from topics.testing import ServerProcess


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser without a page. It ends with its module: while it runs, no test of the process can run a loop."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visit]:
    """Opens the console; whatever the browser complains about fails the test."""
    opened = Visit(chromium)
    yield opened
    opened.close()
    assert opened.complaints == []


@pytest.fixture(scope="session")
def shop() -> Iterator[ServerProcess]:
    """A server with a little of everything."""
    with ServerProcess() as running:
        fill(running)
        yield running
