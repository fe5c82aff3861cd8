"""Kills a server under the Python library's producers, consumers and workers, and judges what they saw.

python -m tools.client_chaos --restarts 50 --seed 7
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.harness.chaos import Chaos
from topics.client.operations import identity


def main() -> int:
    """Run once, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    # Both kinds of identity that a write may have.
    identity.KEYED_WRITES = 100  # type: ignore[misc]
    logging.getLogger("topics.client").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="topics-chaos-") as directory:
        chaos = Chaos(Path(directory), given.restarts, given.seed)
        chaos.run()
        chaos.judge()
    gaps = sum(not hasattr(item, "data") for item in chaos.followed)
    deliveries = sum(chaos.worked.values())
    print(
        f"{given.restarts} kills: {sum(chaos.produced.values()):,} records produced, {len(chaos.singles):,} written"
        f" singly, {chaos.jobs_written:,} jobs done in {deliveries:,} deliveries, {gaps} losses reported;"
        " nothing lost, nothing doubled, every loss seen once"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
