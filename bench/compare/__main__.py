"""`python -m bench.compare`: measure, and write the figures and the page."""

from __future__ import annotations

import compileall
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import topics
from bench import load
from bench.bed import Bench, filesystem
from bench.compare import report
from bench.compare.work import SYSTEMS, compare


def main(
    only: Annotated[list[str] | None, typer.Option(help="Do these works alone (a pattern such as `append*`).")] = None,
    seconds: Annotated[float, typer.Option(help="How long each round of a work lasts.")] = 2.0,
    rounds: Annotated[int, typer.Option(help="Rounds of each work; the median is shown.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="Where the data goes: the disk to be measured.")] = None,
    figures: Annotated[Path, typer.Option(help="Where the figures go.")] = report.FIGURES,
    page: Annotated[bool, typer.Option(help="Also write the page and its plots.")] = True,
    render: Annotated[bool, typer.Option("--render", help="Measure nothing; write the page again.")] = False,
) -> None:
    """Do the same work on topics, Redis Streams and NATS JetStream, and write docs/benchmarks.md."""
    if not render:
        bench = Bench(False, tuple(only or ()), seconds, rounds, directory)
        figures.write_text(json.dumps(_measure(bench), indent=1) + "\n", encoding="utf-8")
    if page or render:
        for path, text in report.render(json.loads(figures.read_text(encoding="utf-8"))).items():
            path.write_text(text, encoding="utf-8")


def _measure(bench: Bench) -> dict[str, Any]:
    # As an install leaves it: what is measured is the server, not Python's compiler.
    compileall.compile_dir(Path(topics.__file__).parent, quiet=2)
    systems = [system for system in SYSTEMS if system.version() is not None]
    about = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{len(bench.cores)} cores, {platform.system()} {platform.release().partition('-')[0]}",
        "disk": filesystem(bench.directory or Path(tempfile.gettempdir())),
        "python": platform.python_version(),
        "generator": "wrk" if load.has_wrk() else "Python, because wrk is not installed",
        "seconds": bench.seconds,
        "rounds": bench.rounds,
        "versions": {system.name: system.version() for system in systems},
        "load": round(os.getloadavg()[0], 2),
    }
    for system in SYSTEMS:
        if system not in systems:
            print(f"{system.name}: not installed, and left out")
    os.sched_setaffinity(0, {bench.cores[-1]})
    rows = []
    for outcome in compare(bench, systems):
        rows.append(outcome.as_dict())
        print(json.dumps(rows[-1]), flush=True)
    return {"about": about, "rows": rows}


if __name__ == "__main__":
    typer.run(main)
