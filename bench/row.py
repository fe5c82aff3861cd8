"""Row: one line of the table, and the target that it is held against."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

UNITS = {
    "requests_s": "req/s",
    "records_s": "rec/s",
    "p50_ms": "ms p50",
    "p99_ms": "ms p99",
    "cpu_us": "us/req",
    "seconds": "s",
    "mib": "MiB",
    "ratio": "x",
}
HEADER = (
    f"{'row':<24} {'requests/s':>10} {'records/s':>11} {'p50 ms':>7} {'p99 ms':>7} {'CPU us':>7} {'core':>5}"
    f" {'figure':>10}  {'target':<17} {'':<6} note"
)


@dataclass(frozen=True)
class Target:
    """A bound on one figure of a row."""

    figure: str
    bound: float
    least: bool

    def met(self, value: float) -> bool:
        """Whether the value keeps the bound."""
        return value >= self.bound if self.least else value <= self.bound

    def __str__(self) -> str:
        bound = f"{self.bound / 1e6:g} M" if self.bound >= 1e6 else f"{self.bound:,g}"
        return f"{'>=' if self.least else '<='} {bound} {UNITS[self.figure]}"


def at_least(bound: float, figure: str = "requests_s") -> Target:
    """A figure that should be this high."""
    return Target(figure, bound, least=True)


def at_most(bound: float, figure: str) -> Target:
    """A figure that should be this low."""
    return Target(figure, bound, least=False)


@dataclass
class Row:
    """What was measured; None is what does not apply."""

    name: str
    title: str
    requests_s: float | None = None
    records_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_us: float | None = None
    """Processor time of the server per request, user and system, all its threads."""
    core: float | None = None
    """Share of its core that the server used: well under 1, something else was the bottleneck."""
    seconds: float | None = None
    mib: float | None = None
    ratio: float | None = None
    target: Target | None = None
    peer: str | None = None
    """The row of a peer that this one is compared with, if it was measured in the same run."""
    note: str = ""

    def add_note(self, text: str) -> None:
        """Add a remark after those that the row has."""
        self.note = "; ".join(part for part in (self.note, text) if part)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        value = getattr(self, self.target.figure)
        return value is not None and self.target.met(value)

    @property
    def rate(self) -> float | None:
        """What is compared with a peer: records per second, or else requests."""
        return self.requests_s if self.records_s is None else self.records_s

    @property
    def cost_us(self) -> float | None:
        """Processor time per record, or else per request: what is compared with a peer on a machine that is shared."""
        if self.cpu_us is None or not self.requests_s or not self.rate:
            return None
        return self.cpu_us * self.requests_s / self.rate

    def as_dict(self) -> dict[str, Any]:
        """The row for the JSON output."""
        shown = dataclasses.asdict(self)
        shown["target"] = None if self.target is None else str(self.target)
        return shown | {"met": self.met}

    def line(self, peers: dict[str, Row]) -> str:
        """The row as a line under HEADER."""
        figure = ""
        for name in ("seconds", "mib", "ratio"):
            value = getattr(self, name)
            if value is not None:
                figure = f"{value:,.2f} {UNITS[name]}" if value < 100 else f"{value:,.0f} {UNITS[name]}"
        met = {None: "", True: "met", False: "MISSED"}[self.met]
        note = self.note
        peer = peers.get(self.peer or "")
        if peer is not None and peer.rate and self.rate:
            cost = self.cost_us, peer.cost_us
            by_cpu = f" ({cost[1] / cost[0]:.2f} by CPU)" if cost[0] and cost[1] else ""
            note = f"x{self.rate / peer.rate:.2f} of {peer.name}{by_cpu}" + (f"; {note}" if note else "")
        return (
            f"{self.name:<24} {_count(self.requests_s):>10} {_count(self.records_s):>11} {_small(self.p50_ms):>7}"
            f" {_small(self.p99_ms):>7} {_small(self.cpu_us):>7} {_share(self.core):>5} {figure:>10}"
            f"  {self.target or ''!s:<17} {met:<6} {note}"
        ).rstrip()


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _small(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
