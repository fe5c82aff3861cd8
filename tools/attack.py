"""Repeats every attack on a server of its own and prints what everybody else noticed of it.

    python -m tools.attack --only 'http2-*' --against ../before

Each line is one attack (tests/hostile/attacks): the longest that a bystander waited for an answer, and the most memory
that the server took. With `--against` every attack is also run on another checkout, for a table of before and after.
`stolen` is how many milliseconds another machine had the cores in that time, where this one is virtual: while it is not
close to 0, a stall says little. Exits with 1 where an attack stalled the bystander for more than `--stall-ms`, took
more than `--mib`, or found fault.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Annotated

import typer

from tests.hostile.attack import attacks
from tests.hostile.encounter import HERE, Encounter, meet


def main(
    only: Annotated[list[str] | None, typer.Option(help="Only these attacks (a pattern such as `http2-*`).")] = None,
    against: Annotated[Path | None, typer.Option(help="Another checkout, attacked in the same way.")] = None,
    seconds: Annotated[float, typer.Option(help="How long a flood lasts.")] = 3.0,
    stall_ms: Annotated[float, typer.Option(help="The longest stall that passes.")] = 50.0,
    mib: Annotated[float, typer.Option(help="The most memory that passes.")] = 1024.0,
    list_: Annotated[bool, typer.Option("--list", help="List the attacks and run none.")] = False,
) -> None:
    """Attack."""
    chosen = [one for one in attacks().values() if any(fnmatch.fnmatch(one.name, pattern) for pattern in only or ["*"])]
    if list_:
        for one in chosen:
            print(f"{one.name:<28} {one.summary}")
        return
    print(
        f"{'attack':<28} {'tree':<6} {'calm':>7} {'p99':>8} {'stall ms':>9} {'peak MiB':>9} {'after':>7} {'stolen':>7}"
    )
    held = True
    for one in chosen:
        if against is not None:
            _line("before", meet(one, seconds=seconds, tree=against))
        found = meet(one, seconds=seconds, tree=HERE)
        _line("now" if against is not None else "", found)
        held = held and not found.failure and found.stall_ms <= stall_ms and found.peak_mib <= mib
    if not held:
        raise typer.Exit(1)


def _line(tree: str, found: Encounter) -> None:
    notes = [f"{found.refused} refused"] * bool(found.refused) + [f"{found.disconnected} cut off"] * bool(
        found.disconnected
    )
    notes += [found.failure] * bool(found.failure)
    print(
        f"{found.name:<28} {tree:<6} {found.calm_ms:>7.1f} {found.p99_ms:>8.1f} {found.stall_ms:>9.1f}"
        f" {found.peak_mib:>9.0f} {found.after_mib:>7.0f} {found.stolen_ms:>7.0f}  {'; '.join(notes)}",
        flush=True,
    )


if __name__ == "__main__":
    typer.run(main)
