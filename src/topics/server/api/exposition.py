"""Exposition: families of metrics, as Prometheus text (version 0.0.4) and as JSON values.

A family has a name, a help text, and samples: one without labels, or one for each combination of label texts. The
suffixes that Prometheus expects (`_total`, `_bucket`, `_sum`, `_count`, `_info`) are added here. The library that
Prometheus offers for this keeps a registry and a server of its own, and took a tenth of the time of a start to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPED_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Sample(NamedTuple):
    """One value, and the texts of its labels."""

    name: str
    labels: Sequence[str]
    texts: Sequence[str]
    value: float


class Family:
    """Samples of one kind. `samples` are in the order in which they were added."""

    kind: ClassVar[str]
    suffix: ClassVar[str] = ""
    """What the name of the family ends with in the text."""

    __slots__ = ("help", "labels", "name", "samples")

    def __init__(self, name: str, help: str, value: float | None = None, *, labels: Sequence[str] = ()) -> None:
        """With a `value`, it has this one sample without labels."""
        self.name = name + self.suffix
        self.help = help
        self.labels = labels
        self.samples: list[Sample] = []
        if value is not None:
            self.add((), value)

    def add(self, texts: Sequence[str], value: float) -> None:
        """Add a sample with these texts of the labels."""
        self.samples.append(Sample(self.name, self.labels, texts, value))


class Gauge(Family):
    """A value that goes up and down."""

    kind = "gauge"
    __slots__ = ()


class Counter(Family):
    """A value that only grows until the next start."""

    kind = "counter"
    suffix = "_total"
    __slots__ = ()


class Info(Family):
    """Texts: labels of a sample whose value is 1."""

    kind = "gauge"
    suffix = "_info"
    __slots__ = ()

    def __init__(self, name: str, help: str, texts: Mapping[str, str]) -> None:
        super().__init__(name, help, labels=[*texts])
        self.add([*texts.values()], 1)


class Summary(Family):
    """How many there were, and their sum."""

    kind = "summary"
    __slots__ = ()

    def __init__(self, name: str, help: str, count: int, total: float) -> None:
        super().__init__(name, help)
        self.samples += Sample(f"{name}_count", (), (), count), Sample(f"{name}_sum", (), (), total)


class Buckets(Family):
    """How many there were up to each of some bounds, and their sum: what Prometheus calls a histogram."""

    kind = "histogram"
    __slots__ = ()

    def add_buckets(self, texts: Sequence[str], buckets: Sequence[tuple[str, float]], total: float) -> None:
        """Add the counts up to each bound, the last of which is `+Inf`, and the sum."""
        name, labels = self.name, self.labels
        bounds = [*labels, "le"]
        self.samples += [Sample(f"{name}_bucket", bounds, [*texts, bound], count) for bound, count in buckets]
        self.samples.append(Sample(f"{name}_count", labels, texts, buckets[-1][1]))
        self.samples.append(Sample(f"{name}_sum", labels, texts, total))


def labelled(name: str, help: str, label: str, values: Iterable[tuple[str, float]]) -> Gauge:
    """A gauge with a value for each text of one label."""
    family = Gauge(name, help, labels=(label,))
    for text, value in values:
        family.add((text,), value)
    return family


def text(families: Iterable[Family]) -> bytes:
    """The families as Prometheus reads them."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help.translate(_ESCAPED_HELP)}\n")
        lines.append(f"# TYPE {family.name} {family.kind}\n")
        for name, labels, texts, value in family.samples:
            if texts:
                pairs = zip(labels, texts, strict=True)
                name += "{" + ",".join(f'{label}="{each.translate(_ESCAPED)}"' for label, each in pairs) + "}"
            lines.append(f"{name} {float(value)}\n")
    return "".join(lines).encode()


def values(families: Iterable[Family]) -> dict[str, Any]:
    """The values by name, and within a name with labels by their texts, with commas between."""
    found: dict[str, Any] = {}
    for family in families:
        for name, _, texts, value in family.samples:
            if texts:
                found.setdefault(name, {})[",".join(texts)] = value
            else:
                found[name] = value
    return found
