"""Crashes an engine a million times, by dice, and reports where a promise broke.

    python -m tools.crash_sweep --points 1000000 --seed 1 --processes 2

Each life is swept with crashes (tests.harness.sweep). What breaks is printed with the seed that brings it back:
`--seed N --lives 1` runs that life alone.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections import Counter
from typing import Annotated, NamedTuple

import typer

from tests.harness.machine import small
from tests.harness.sweep import live

STEPS = 400
SHARE = 0.2
CHUNK_LIVES = 5


class Outcome(NamedTuple):
    """What came of some lives."""

    points: int
    done: Counter[str]
    failures: list[str]


def run(first_seed: int, lives: int = CHUNK_LIVES) -> Outcome:
    """Sweep this many lives."""
    points = 0
    done: Counter[str] = Counter()
    failures = []
    with small():
        for seed in range(first_seed, first_seed + lives):
            try:
                world, sweep = live(seed, STEPS, SHARE)
            except Exception:
                failures.append(f"seed {seed}:\n{traceback.format_exc()}")
                continue
            points += sweep.points
            done += world.done
    return Outcome(points, done, failures)


def main(
    points: Annotated[int, typer.Option(help="How many crash points at least.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="The seed of the first life.")] = 1,
    lives: Annotated[int, typer.Option(help="Exactly this many lives instead.")] = 0,
    processes: Annotated[int, typer.Option(help="How many at a time.")] = os.cpu_count() or 1,
) -> None:
    """Sweep until there are enough points; exits with 1 where a promise broke."""
    started = time.monotonic()
    total = 0
    done: Counter[str] = Counter()
    failures: list[str] = []
    if lives:
        outcomes = iter([run(seed, lives)])
    else:
        pool = multiprocessing.Pool(processes)
        outcomes = pool.imap_unordered(run, range(seed, seed + (1 << 40), CHUNK_LIVES))
    for outcome in outcomes:
        total += outcome.points
        done += outcome.done
        failures += outcome.failures
        for failure in outcome.failures:
            print(failure, flush=True)
        elapsed_s = time.monotonic() - started
        print(f"{total} crash points, {len(failures)} broken, {elapsed_s:.0f} s", flush=True)
        if total >= points or len(failures) >= 10:
            break
    print("; ".join(f"{name} {count}" for name, count in sorted(done.items())))
    raise typer.Exit(1 if failures else 0)


if __name__ == "__main__":
    typer.run(main)
