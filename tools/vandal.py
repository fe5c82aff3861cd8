"""Damages data directories in every way there is a name for, and says where a start broke a promise.

    tools/vandal.py --houses 100 --visits 500 --seed 1

Each house is a data directory with something of everything; each visit does one thing to a copy of it and starts an
engine on what is left (tests.harness.vandal). What breaks is printed with the seed of its house.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections import Counter
from typing import Annotated

import typer

from tests.harness.machine import small
from tests.harness.vandal import visit_all


def run(job: tuple[int, int]) -> tuple[Counter[str], str]:
    """The outcomes of the visits to one house, and what broke."""
    with small():
        try:
            return visit_all(*job), ""
        except Exception:
            return Counter(broken=1), traceback.format_exc()


def main(
    houses: Annotated[int, typer.Option(help="How many data directories.")] = 100,
    visits: Annotated[int, typer.Option(help="How often each is damaged.")] = 500,
    seed: Annotated[int, typer.Option(help="The seed of the first house.")] = 1,
    processes: Annotated[int, typer.Option(help="How many at a time.")] = os.cpu_count() or 1,
) -> None:
    """Visit every house; exits with 1 where a promise broke."""
    total: Counter[str] = Counter()
    with multiprocessing.Pool(processes) as pool:
        for done, (outcomes, failure) in enumerate(
            pool.imap_unordered(run, [(number, visits) for number in range(seed, seed + houses)]), 1
        ):
            total += outcomes
            if failure:
                print(failure, flush=True)
            print(f"{done} houses: {', '.join(f'{count} {name}' for name, count in sorted(total.items()))}", flush=True)
    raise typer.Exit(1 if total["broken"] else 0)


if __name__ == "__main__":
    typer.run(main)
