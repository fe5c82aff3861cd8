"""`python -m bench`: run the sections, print the table, say which targets are met."""

from __future__ import annotations

import compileall
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import topics
from bench import against, load
from bench.baton import Baton
from bench.bed import Bench, filesystem
from bench.row import HEADER, Row
from bench.sections import SECTIONS


def main(
    full: Annotated[bool, typer.Option("--full", help="Also the rows of 10 million records: minutes more.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Measure these rows (a pattern such as `post-*`).")] = None,
    seconds: Annotated[float, typer.Option(help="How long each round lasts.")] = 3.0,
    rounds: Annotated[int, typer.Option(help="Rounds of the headline rows; the median is shown.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="Where the data goes: the disk to be measured.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
    other: Annotated[
        Path | None, typer.Option("--against", help="Another checkout: measure each row alternately there and here.")
    ] = None,
    list_rows: Annotated[bool, typer.Option("--list", help="List the rows and measure nothing.")] = False,
) -> None:
    """Measure this machine: server on one core, load on the other."""
    if list_rows:
        for name, module in SECTIONS.items():
            print(f"{name}: {' '.join(getattr(module, 'ROWS', ()))}")
        return
    if other is not None:
        raise typer.Exit(0 if against.compare(other.resolve(), only or (), seconds, rounds) else 1)
    bench = Bench(full, tuple(only or ()), seconds, rounds, directory, baton=Baton.inherited())
    # As an install leaves it: what is measured is the server, not Python's compiler.
    compileall.compile_dir(Path(topics.__file__).parent, quiet=2)
    begin = time.monotonic()
    about = _about(bench)
    print("\n".join(f"{key}: {value}" for key, value in about.items()))
    os.sched_setaffinity(0, {bench.cores[-1]})
    rows: dict[str, Row] = {}
    for name, module in SECTIONS.items():
        _run(name, module, bench, rows)
    judged = [row for row in rows.values() if row.met is not None]
    missed = [row.name for row in judged if not row.met]
    print(
        f"\n{len(judged) - len(missed)} of {len(judged)} targets met{'; missed: ' if missed else ''}{', '.join(missed)}"
    )
    print(f"{time.monotonic() - begin:.0f} s; load average now {os.getloadavg()[0]:.2f}")
    if json_file is not None:
        json_file.write_text(json.dumps({"about": about, "rows": [row.as_dict() for row in rows.values()]}, indent=1))


def _run(name: str, module: ModuleType, bench: Bench, rows: dict[str, Row]) -> None:
    if not hasattr(module, "ROWS"):
        # A section that prints its own lines.
        if bench.wants(name):
            print(f"\n{name}", flush=True)
            module.main()
            os.sched_setaffinity(0, {bench.cores[-1]})
        return
    if not bench.wants(*module.ROWS):
        return
    print(f"\n{name} (load average {os.getloadavg()[0]:.2f})\n{HEADER}", flush=True)
    for row in module.measure(bench):
        rows[row.name] = row
        print(row.line(rows), flush=True)
        bench.pass_on()


def _about(bench: Bench) -> dict[str, str]:
    cores = bench.cores
    return {
        "machine": f"{len(cores)} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "server": f"core {cores[0]}",
        "generator": f"core {cores[-1]}, {'wrk' if load.has_wrk() else 'Python (wrk is not installed)'}"
        + ("" if len(cores) > 1 else "; ONE CORE FOR BOTH"),
        "disk": filesystem(bench.directory or Path(tempfile.gettempdir())),
        "load average": f"{os.getloadavg()[0]:.2f}",
    }


if __name__ == "__main__":
    typer.run(main)
