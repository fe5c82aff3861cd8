"""The JavaScript library under Node against a real server: its own tests, and one that is killed again and again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.api import free_port
from topics import __version__
from topics.testing import ServerProcess

NODE = shutil.which("node")
HERE = Path(__file__).resolve().parents[2] / "javascript"
LIBRARY = HERE.parents[1] / "src" / "topics" / "javascript"
DOCS = HERE.parents[1] / "docs" / "javascript.md"
BLOCK = re.compile(r"```js\n(.*?)```", re.DOTALL)
PRINTED = ("39\n", "lost 1 to 2: cap\n3\n4\n", "working on s3://bucket/a.png\n", "hello\n")
KILLS = int(os.environ.get("TOPICS_LIBRARY_KILLS", "4"))

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


def environ(server: ServerProcess) -> dict[str, str]:
    return os.environ | {"TOPICS_TEST_URL": server.url}


def test_the_library_does_what_it_says(server: ServerProcess) -> None:
    """JS-1, JS-2, JS-3: the tests of tests/javascript, each against this server."""
    ran = subprocess.run(
        [str(NODE), "--test", *sorted(str(path) for path in HERE.glob("*.test.js"))],
        env=environ(server),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout[-5000:]


def test_nothing_is_lost_or_doubled_while_the_server_is_killed() -> None:
    """JS-4: every write is there once, every follower sees every record once and in order, every job is done."""
    with ServerProcess(port=free_port()) as server:
        client = subprocess.Popen(
            [str(NODE), str(HERE / "steadfast.js")],
            env=environ(server),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(KILLS):
            time.sleep(1.0)
            server.kill()
            server.start()
        time.sleep(0.3)
        out, errors = client.communicate(timeout=90)
        assert client.returncode == 0, errors[-3000:]
    seen = json.loads(out)
    acked = seen["written"] + seen["published"]
    assert len(acked) > KILLS
    assert Counter(seen["followed"]) == Counter(acked)
    assert seen["subscribed"] == seen["followed"]
    for prefix in "wp":
        one = [int(data[1:]) for data in seen["followed"] if data[0] == prefix]
        assert one == list(range(len(one)))
    assert set(seen["done"]) == set(range(len(seen["written"])))


@pytest.mark.parametrize("index", range(4))
def test_the_code_of_the_docs_runs(index: int, start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """JS-5: every block of docs/javascript.md runs as it stands, on a server where nobody else has such topics."""
    server = start_server()
    blocks = BLOCK.findall(DOCS.read_text(encoding="utf-8"))
    assert len(blocks) == 4
    package = tmp_path / "node_modules" / "topics-client"
    package.parent.mkdir()
    package.symlink_to(LIBRARY)
    script = tmp_path / "block.mjs"
    script.write_text(blocks[index].replace("http://127.0.0.1:4000", server.url), encoding="utf-8")

    ran = subprocess.run([str(NODE), str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == PRINTED[index]


def test_the_package_holds_the_module_and_its_types() -> None:
    """JS-6: what npm packs; its version is that of the server, and every exported name has a type."""
    package = json.loads((LIBRARY / "package.json").read_text())
    exported = re.compile(r"^export (?:class|function|const) (\w+)", re.MULTILINE)
    names = set(exported.findall((LIBRARY / "topics.js").read_text()))
    typed = set(exported.findall((LIBRARY / "topics.d.ts").read_text()))

    assert package["version"] == __version__
    assert names == typed
    assert all((LIBRARY / name).exists() for name in package["files"])
