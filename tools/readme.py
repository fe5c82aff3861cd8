"""Runs the walk-through of the README against a fresh server.

The README promises that its commands print what it shows, so the outputs are taken from a run: this script writes them
into the README, and `tests/acceptance/test_readme.py` compares them. Only times may differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from topics.testing import ServerProcess

README = Path(__file__).resolve().parent.parent / "README.md"
ADDRESS = "http://127.0.0.1:4000"

_BLOCK = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
_STEP = re.compile(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
_CONFIG = re.compile(r'"config":\{[^}]*\}')
_CALLS = re.compile(r"\bcurl |\btopics (?:publish|tail|ls|show)\b")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")
_TIME = re.compile(r'("(?:\$ts|last_write_ts|last_read_ts|erased_before_ts|uptime_ms|\w+_ms)":)\d+(?:\.\d+)?(?=[,}])')


def steps(text: str) -> list[tuple[str, str]]:
    """Each command of the README that calls the server, with the output shown below it."""
    found = [(step[1], step[2]) for block in _BLOCK.findall(text) for step in _STEP.finditer(block)]
    return [(command, output) for command, output in found if _CALLS.search(command)]


def run(command: str, url: str) -> str:
    """What `command` prints when the server is at `url`, with the README's address in place of it."""
    here = command.replace(ADDRESS, url)
    environ = {**os.environ, "TOPICS_URL": url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = subprocess.run(["bash", "-c", here], **both, env=environ, text=True, timeout=30, check=True)
    return ran.stdout.replace(url, ADDRESS).strip() + "\n"


def without_times(output: str) -> str:
    """`output` with every time and measured duration as 0; durations inside a config are settings and stay."""
    output = _CLOCK.sub("0", output)
    configs = iter(_CONFIG.findall(output))
    return _CONFIG.sub(lambda _: next(configs), _TIME.sub(r"\g<1>0", output))


def rewrite(text: str, url: str) -> str:
    """`text` with every output as a run gives it."""

    def rerun(step: re.Match[str]) -> str:
        return f"$ {step[1]}{run(step[1], url)}" if _CALLS.search(step[1]) else step[0]

    return _BLOCK.sub(lambda block: _STEP.sub(rerun, block[0]), text)


if __name__ == "__main__":
    with ServerProcess() as server:
        README.write_text(rewrite(README.read_text(encoding="utf-8"), server.url), encoding="utf-8")
