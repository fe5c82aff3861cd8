"""Runs what the pages show against a fresh server: the walk of the README, and every block of the pages in PAGES.

A page promises that its commands print what it shows, so the outputs are taken from a run: this script writes them into
the README and the pages, and `tests/acceptance/test_readme.py` and `tests/acceptance/test_pages.py` compare them. Only
times may differ, and what a page shortens with an ellipsis.

The README has commands that start servers and tests; of those, only what calls the server is run here. In a page
everything runs, in the order of the page, on one server for all pages: `console` blocks with their output, `sh` and
`python` blocks as they stand. So each page has topics of its own. Commands that `SETS_UP` matches prepare a reader's
machine; the tests of the packages run those.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from topics.testing import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [
    ROOT / "docs" / name
    for name in (
        "start.md",
        "concepts.md",
        "guides/events.md",
        "guides/live-pages.md",
        "guides/exactly-once.md",
        "guides/erasure.md",
        "moving/redis-streams.md",
        "moving/sqs.md",
        "moving/rabbitmq.md",
        "moving/kafka.md",
        "moving/bullmq.md",
        "moving/nats.md",
    )
]
ADDRESS = "http://127.0.0.1:4000"
SETS_UP = re.compile(r"pip install |python3 -m venv |make |topics serve|TOPICS_CORS_ORIGINS=")
RUNS = ("console", "sh", "python")
SHOWS = ("html", "text")
"""Languages that are not run here; a page of its own test, or no program."""

_BLOCK = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
_ANY_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_STEP = re.compile(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
_CONFIG = re.compile(r'"config":\{[^}]*\}')
_CALLS = re.compile(r"\bcurl |\btopics (?:publish|tail|ls|show)\b")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")
_TIME = re.compile(
    r'("(?:\$ts|last_write_ts|last_read_ts|erased_before_ts|uptime_ms|deadline|\w+_ms)":)\d+(?:\.\d+)?(?=[,}])'
)


def steps(text: str) -> list[tuple[str, str]]:
    """Each command of the README that calls the server, with the output shown below it."""
    found = [step for block in _BLOCK.findall(text) for step in commands(block)]
    return [(command, output) for command, output in found if _CALLS.search(command)]


def blocks(text: str) -> list[tuple[str, str]]:
    """Every block of a page: its language and its text."""
    return [(found[1], found[2]) for found in _ANY_BLOCK.finditer(text)]


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output shown below it."""
    return [(step[1], step[2]) for step in _STEP.finditer(block)]


def run(command: str, url: str, cwd: Path | None = None) -> str:
    """What `command` prints when the server is at `url`, with the README's address in place of it."""
    printed = _run(["bash", "-c", command.replace(ADDRESS, url)], url, cwd).replace(url, ADDRESS).strip()
    return f"{printed}\n" if printed else ""


def run_python(code: str, url: str, cwd: Path | None = None) -> str:
    """What a block of Python prints when the server is at `url`; a warning ends it."""
    return _run([sys.executable, "-W", "error", "-c", code], url, cwd)


def _run(command: list[str], url: str, cwd: Path | None) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    environ = {**kept, "TOPICS_URL": url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = subprocess.run(command, **both, env=environ, cwd=cwd, text=True, timeout=60, check=False)
    if ran.returncode:
        raise AssertionError(f"exit code {ran.returncode}: {command[-1]}\n{ran.stdout}")
    return ran.stdout


def prepare(page: Path, cwd: Path) -> None:
    """Make in a directory what a page takes for granted: the lake that an archive would have made."""
    if page.name == "erasure.md":
        import pyarrow as pa

        from topics.pipeline.lake.delta import DeltaLake
        from topics.pipeline.lake.files import FILE_SCHEMA, Files, by_date
        from topics.spark.place import Place

        lake = DeltaLake(Place(cwd / "lake"))
        files = Files(str(lake.root), FILE_SCHEMA, 0, 1 << 20)
        ts = 1_794_895_200_000_000
        rows = [
            (1, ts, None, "customer-7", None, '{"street":"Elm Street 7"}', 1),
            (2, ts, None, "customer-8", None, "1", 1),
        ]
        columns = [
            pa.array(values).cast(field.type)
            for values, field in zip(zip(*rows, strict=True), FILE_SCHEMA, strict=True)
        ]
        for date, part in by_date(pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)):
            files.add(f"topic=store.orders/date={date}/", "store.orders", date, part)
        lake.commit("archive", 0, files.close(), {"store.orders": {"epoch": 1, "seq": 2}})


def without_times(output: str) -> str:
    """`output` with every time and measured duration as 0; durations inside a config are settings and stay."""
    output = _CLOCK.sub("0", output)
    configs = iter(_CONFIG.findall(output))
    return _CONFIG.sub(lambda _: next(configs), _TIME.sub(r"\g<1>0", output))


def agrees(printed: str, shown: str) -> bool:
    """Whether a page may show this for what was printed: the same but for times, and `…` for what it leaves out."""
    parts = map(re.escape, without_times(shown).split("…"))
    return re.fullmatch(".*".join(parts), without_times(printed), re.DOTALL) is not None


def rewrite(text: str, url: str) -> str:
    """The README with every output as a run gives it."""

    def rerun(step: re.Match[str]) -> str:
        return f"$ {step[1]}{run(step[1], url)}" if _CALLS.search(step[1]) else step[0]

    return _BLOCK.sub(lambda block: _STEP.sub(rerun, block[0]), text)


def rewrite_page(text: str, url: str, cwd: Path) -> str:
    """A page with every output as a run gives it, and everything else run in its place."""

    def step(found: re.Match[str]) -> str:
        if SETS_UP.match(found[1]):
            return found[0]
        printed = run(found[1], url, cwd)
        return f"$ {found[1]}{found[2] if '…' in found[2] and agrees(printed, found[2]) else printed}"

    def block(found: re.Match[str]) -> str:
        language, code = found[1], found[2]
        if language == "python":
            run_python(code, url, cwd)
        elif language == "sh":
            run(code, url, cwd)
        return f"```{language}\n{_STEP.sub(step, code) if language == 'console' else code}```"

    return _ANY_BLOCK.sub(block, text)


if __name__ == "__main__":
    with ServerProcess() as server:
        README.write_text(rewrite(README.read_text(encoding="utf-8"), server.url), encoding="utf-8")
    with ServerProcess() as server:
        for page in PAGES:
            with tempfile.TemporaryDirectory() as scratch:
                prepare(page, Path(scratch))
                rewritten = rewrite_page(page.read_text(encoding="utf-8"), server.url, Path(scratch))
                page.write_text(rewritten, encoding="utf-8")
