"""Offsets: how far a lake holds each topic, kept in the commits of its tables.

Two archives of one topic would each go on from where the other has been. So a batch says where it began, and is refused
if the table is elsewhere by then.
"""

from __future__ import annotations

from typing import Any

from topics.pipeline.errors import PipelineError
from topics.spark.place import Place

Offsets = dict[str, Any]


def check_begun(root: Place, known: Offsets | None, offsets: Offsets, begun: Offsets | None) -> None:
    """Refuse a batch that began elsewhere than where the table is now, by another archive of the same topics."""
    if known is None or begun is None:
        return
    for topic in sorted(set(offsets) & {*known, *begun}):
        if known.get(topic) != begun.get(topic):
            raise PipelineError(
                f'another archive has brought topic "{topic}" in {root} to {_shown(known.get(topic))}, and '
                f"this one went on from {_shown(begun.get(topic))}; run one archive of a topic at a time, and this "
                f"one without its checkpoint if it has to go on from there"
            )


def _shown(at: Any) -> str:
    return "no place" if at is None else f"seq {at['seq']} (epoch {at['epoch']})"
