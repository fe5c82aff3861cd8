"""Kills a real server under load for hours, and checks everything that it acknowledged.

    python -m tools.soak --hours 8 --seed 1

Every round loads the server for up to two seconds, kills it (now and then stops it in order), starts it again, and
reads everything back (tests.harness.kill). It ends at the first promise that broke, and leaves the data directory.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from tests.harness.kill import KillLoop
from tests.harness.oracle import Broken
from topics.testing import ServerProcess

RENEW_ROUNDS = 20


def main(
    hours: Annotated[float, typer.Option(help="How long.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Decides when to kill.")] = 1,
) -> None:
    """Soak; exits with 1 where a promise broke."""
    rng = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="topics-soak-")) / "data"
    ends = time.monotonic() + hours * 3600
    print(f"seed {seed}, data in {directory}", flush=True)
    with ServerProcess(
        data_dir=directory,
        wal_shards=2,
        segment_max_events=300,
        checkpoint_wal_bytes=500_000,
        cold_dir=directory.parent / "cold",
        hot_retain_segments=1,
    ) as server:
        loop = KillLoop(server, seed)
        try:
            while time.monotonic() < ends:
                loop.round(rng.uniform(0.05, 2.0), kill=rng.random() < 0.9)
                if loop.rounds % RENEW_ROUNDS == 0:
                    print(f"{loop.rounds} rounds, {loop.acked} writes acked, nothing broken", flush=True)
                    loop.renew()
        except Broken as error:
            print(f"round {loop.rounds}: {error}\nthe data is left in {directory}", flush=True)
            raise typer.Exit(1) from None
    shutil.rmtree(directory.parent)
    print(f"{loop.rounds} rounds, {loop.acked} writes acked, nothing broken")


if __name__ == "__main__":
    typer.run(main)
