"""Damages data directories in every way there is a name for, and reports where a start broke a promise.

    python -m tools.vandal --directories 100 --acts 500 --seed 1

Each directory has something of everything; each act does one thing to a copy of it and starts an engine on what is left
(tests.harness.vandal). What breaks is printed with the seed of its directory.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections import Counter
from typing import Annotated

import typer

from tests.harness.machine import small
from tests.harness.vandal import vandalise


def run(task: tuple[int, int]) -> tuple[Counter[str], str]:
    """The outcomes of the acts on one directory, and what broke."""
    with small():
        try:
            return vandalise(*task), ""
        except Exception:
            return Counter(broken=1), traceback.format_exc()


def main(
    directories: Annotated[int, typer.Option(help="How many data directories.")] = 100,
    acts: Annotated[int, typer.Option(help="How often each is damaged.")] = 500,
    seed: Annotated[int, typer.Option(help="The seed of the first directory.")] = 1,
    processes: Annotated[int, typer.Option(help="How many at a time.")] = os.cpu_count() or 1,
) -> None:
    """Damage every directory; exits with 1 where a promise broke."""
    total: Counter[str] = Counter()
    with multiprocessing.Pool(processes) as pool:
        for done, (outcomes, failure) in enumerate(
            pool.imap_unordered(run, [(number, acts) for number in range(seed, seed + directories)]), 1
        ):
            total += outcomes
            if failure:
                print(failure, flush=True)
            print(
                f"{done} directories: {', '.join(f'{count} {name}' for name, count in sorted(total.items()))}",
                flush=True,
            )
    raise typer.Exit(1 if total["broken"] else 0)


if __name__ == "__main__":
    typer.run(main)
