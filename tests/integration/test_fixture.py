"""The fixture that users' own tests start a server with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = "from topics.testing import server\n"
TEST = """
from topics import Client

def test_first(server):
    with Client(server.url) as client:
        assert client.topic("orders").write({"id": 1}).seq == 1

def test_each_has_a_server_of_its_own(server):
    with Client(server.url) as client:
        assert client.topics() == []
"""


def test_a_test_of_a_user_gets_a_server_of_its_own(tmp_path: Path) -> None:
    """CLIENT-18."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_mine.py").write_text(TEST)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            ".",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_the_helpers_do_not_need_pytest() -> None:
    code = "import sys, topics.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
