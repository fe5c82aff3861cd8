"""Repeats every attack on a server of its own and prints what everybody else noticed of it.

    python -m tools.attack --only 'http2-*' --against ../before

Each line is one attack (tests/hostile/attacks): the longest that a bystander waited for an answer, and the most memory
that the server took. With `--against` every attack is also run on another checkout, for a table of before and after.
Exits with 1 where an attack stalled the bystander for more than `--stall-ms`, took more than `--mib`, or found fault.

Where the machine is virtual, its host has a part in every wait, and two things are done about that. `paused` is how
many milliseconds the machine itself stood still, and what of that was in a wait is not part of the stall
(tests/hostile/pauses.py); `waited` is the longest wait with it. And memory that the machine has not got from its host
yet may take ten times as long to touch, so `--fill` has it take hold of all that is free before each attack
(bench/pages.py).
"""

from __future__ import annotations

import fnmatch
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bench.pages import Pages
from tests.hostile.attack import Attack, attacks
from tests.hostile.encounter import HERE, Encounter, meet


def main(
    only: Annotated[list[str] | None, typer.Option(help="Only these attacks (a pattern such as `http2-*`).")] = None,
    against: Annotated[Path | None, typer.Option(help="Another checkout, attacked in the same way.")] = None,
    seconds: Annotated[float, typer.Option(help="How long a flood lasts.")] = 3.0,
    stall_ms: Annotated[float, typer.Option(help="The longest stall that passes.")] = 50.0,
    mib: Annotated[float, typer.Option(help="The most memory that passes.")] = 1024.0,
    fill: Annotated[
        bool, typer.Option("--fill", help="Fill the page cache before each, on a virtual machine.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the attacks and run none.")] = False,
) -> None:
    """Attack."""
    chosen = [one for one in attacks().values() if any(fnmatch.fnmatch(one.name, pattern) for pattern in only or ["*"])]
    if list_:
        for one in chosen:
            print(f"{one.name:<28} {one.summary}")
        return
    with tempfile.TemporaryDirectory(prefix="topics-attack-") as directory:
        pages = Pages(Path(directory)) if fill else None
        if not _meet(chosen, against, seconds, stall_ms, mib, pages):
            raise typer.Exit(1)


def _meet(
    chosen: list[Attack], against: Path | None, seconds: float, stall_ms: float, mib: float, pages: Pages | None
) -> bool:
    """Run these attacks and print a line for each; whether all of them were held to the bounds."""
    print(
        f"{'attack':<32} {'tree':<6} {'calm':>6} {'p99':>6} {'stall ms':>9} {'waited':>7} {'peak MiB':>9} {'after':>6}"
        f" {'paused':>7}"
    )
    held = True
    for one in chosen:
        if pages is not None:
            # What the one before has freed.
            pages.fill()
        if against is not None:
            _line("before", meet(one, seconds=seconds, tree=against))
        found = meet(one, seconds=seconds, tree=HERE)
        _line("now" if against is not None else "", found)
        held = held and not found.failure and found.stall_ms <= stall_ms and found.peak_mib <= mib
    return held


def _line(tree: str, found: Encounter) -> None:
    notes = [f"{found.refused} refused"] * bool(found.refused) + [f"{found.disconnected} cut off"] * bool(
        found.disconnected
    )
    notes += [found.failure] * bool(found.failure)
    print(
        f"{found.name:<32} {tree:<6} {found.calm_ms:>6.1f} {found.p99_ms:>6.1f} {found.stall_ms:>9.1f}"
        f" {found.waited_ms:>7.1f} {found.peak_mib:>9.0f} {found.after_mib:>6.0f} {found.paused_ms:>7.0f}"
        f"  {'; '.join(notes)}",
        flush=True,
    )


if __name__ == "__main__":
    typer.run(main)
