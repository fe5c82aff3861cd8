"""docs/storage-format.md knows every kind, magic and version that the code writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.storage import block
from topics.storage.segment import format as segment
from topics.storage.snapshot import snapshot
from topics.storage.wal import file as walfile
from topics.storage.wal import frame

TEXT = (Path(__file__).parents[3] / "docs/storage-format.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("kind", "name"), frame.NAMES.items())
def test_every_frame_kind_is_documented(kind: int, name: str) -> None:
    assert f"| {kind} | {name.upper()} |" in TEXT


@pytest.mark.parametrize(
    "magic",
    [
        block.MAGIC,
        frame.MAGIC,
        walfile.MAGIC,
        snapshot.MAGIC,
        segment.DATA_MAGIC,
        segment.INDEX_MAGIC,
        segment.FLAGS_MAGIC,
    ],
)
def test_every_magic_is_documented(magic: bytes) -> None:
    assert f"`{magic.decode()}`" in TEXT


def test_every_field_of_a_topics_state_is_documented() -> None:
    for field in snapshot.TopicImage.__struct_fields__:
        assert f"`{field}`" in TEXT
