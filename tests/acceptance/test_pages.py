"""The pages in docs/ that teach: every block runs, in the order of its page, and prints what is shown (PROOF-10)."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from topics.testing import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


readme = load()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def walked() -> Iterator[ServerProcess]:
    """One server for all pages, as somebody has who follows them one after the other."""
    with ServerProcess() as server:
        yield server


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", readme.PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page: Path, walked: ServerProcess, tmp_path: Path) -> None:
    """PROOF-10: after a change of the outputs run `.venv/bin/python tools/readme.py`."""
    readme.prepare(page, tmp_path)
    found = readme.blocks(text_of(page))
    assert found
    for language, code in found:
        if language == "python":
            readme.run_python(code, walked.url, tmp_path)
        elif language == "sh":
            readme.run(code, walked.url, tmp_path)
        elif language == "console":
            for command, shown in readme.commands(code):
                if not readme.SETS_UP.match(command):
                    printed = readme.run(command, walked.url, tmp_path)
                    assert readme.agrees(printed, shown), f"{command}{printed}"


@pytest.mark.parametrize("page", readme.PAGES, ids=lambda page: page.stem)
def test_a_page_has_no_block_that_nobody_runs(page: Path) -> None:
    """PROOF-10: no other language, no fence without one, and nothing in a console block that is not a command."""
    text = text_of(page)
    found = readme.blocks(text)
    assert len(found) * 2 == len(re.findall(r"^\s*```", text, re.MULTILINE))
    assert {language for language, _ in found} <= {*readme.RUNS, "html"}
    for language, code in found:
        if language == "console":
            assert "".join(f"$ {command}{shown}" for command, shown in readme.commands(code)) == code


def test_every_page_that_teaches_is_run() -> None:
    """PROOF-10: a new guide belongs into PAGES."""
    taught = {*(ROOT / "docs" / "guides").iterdir(), *(ROOT / "docs" / "moving").iterdir(), ROOT / "docs" / "start.md"}
    assert taught <= set(readme.PAGES)


def test_an_ellipsis_stands_for_anything_and_nothing_else_does() -> None:
    """PROOF-10: the instrument."""
    printed = '{"topic":"t","$ts":17,"count":1,"performance":{"server_total_ms":0.4}}\n'
    for shown in (printed, printed.replace("17", "18"), '{"topic":"t",…"count":1,…}\n', "…\n"):
        assert readme.agrees(printed, shown), shown
    for shown in ('{"topic":"t",…"count":2,…}\n', '{"topic":"t"…"count":1\n', "", '"count":1…\n'):
        assert not readme.agrees(printed, shown), shown
    with pytest.raises(AssertionError, match="exit code 3"):
        readme.run("echo no; exit 3", "http://127.0.0.1:1")
    with pytest.raises(AssertionError, match="exit code 1"):
        readme.run_python("import warnings; warnings.warn('old')", "http://127.0.0.1:1")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The origin of a web server with the files of `tmp_path`."""
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
def test_the_live_page_shows_what_is_written(site: str, tmp_path: Path) -> None:
    """PROOF-10: the page as it stands, on an origin of its own; records are shown and not run, and so is a loss."""
    sync_api: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    ((_, page),) = [each for each in readme.blocks(text_of(ROOT / "docs/guides/live-pages.md")) if each[0] == "html"]
    with ServerProcess(cors_origins=site) as server, sync_api.sync_playwright() as playwright:
        (tmp_path / "index.html").write_text(page.replace(readme.ADDRESS, server.url), encoding="utf-8")
        server.request("PUT", "/v0/topics/kitchen.orders", json={"cap_records": 2})
        for item in ("tea", "milk", "<b>cake</b>"):
            server.request("POST", "/v0/topics/kitchen.orders", json={"records": [{"data": {"item": item}}]})
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            opened = browser.new_page()
            opened.goto(f"{site}/index.html")
            opened.wait_for_selector("li:nth-child(3)")
            assert opened.inner_text("#state") == "live"
            server.request("POST", "/v0/topics/kitchen.orders", json={"records": [{"data": {"item": "bread"}}]})
            opened.wait_for_selector("li:nth-child(4)")
            shown = opened.eval_on_selector_all("li", "lines => lines.map(line => line.textContent)")
        finally:
            browser.close()
    assert shown == ["4: bread", "3: <b>cake</b>", "2: milk", "lost 1 to 1: from_seq_too_old"]
