"""docs/storage-format.md and the product agree: an independent reader finds the same in generated directories."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.format_reader import Reader
from tests.harness.storage import DIRECTORY, Mini, resolve
from topics.storage import block
from topics.storage.wal import frame
from topics.testing.fake_disk import FakeDisk

texts = st.binary(max_size=12)
optional = st.one_of(st.none(), texts)
record = st.tuples(st.binary(min_size=1, max_size=40), optional, optional, st.one_of(st.none(), st.binary(min_size=1)))
step = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3), st.lists(record, min_size=1, max_size=5)),
    st.tuples(st.just("delete"), st.integers(1, 3), st.tuples(st.integers(1, 20), st.integers(0, 4))),
    st.tuples(st.sampled_from(["seal", "relocate", "checkpoint", "restart"]), st.integers(1, 3), st.none()),
)


def read(disk: FakeDisk) -> Reader:
    files = disk.files()
    inside = {path[len(DIRECTORY) + 1 :]: data for path, data in files.items() if path.startswith(f"{DIRECTORY}/")}
    return Reader(inside, {path[len("/cold/") :]: data for path, data in files.items() if path.startswith("/cold/")})


def append(mini: Mini, topic_id: int, records: list[tuple[bytes, bytes | None, bytes | None, bytes | None]]) -> None:
    """As Mini.append, with every column."""
    first_seq = mini.heads.get(topic_id, 0) + 1
    datas, nodes, tags, metas = (list(column) for column in zip(*records, strict=True))
    columns = [column if any(text is not None for text in column) else None for column in (nodes, tags, metas)]
    made = block.encode(topic_id, first_seq, list(range(first_seq, first_seq + len(datas))), datas, *columns)
    encoded = frame.append(mini.store.next_lsn(), topic_id, first_seq, len(datas), made.raw, b"extra")
    mini.store.shard_of(topic_id).submit(encoded, True)
    mini.extents.setdefault(topic_id, []).append(made)
    mini.heads[topic_id] = made.last_seq


def take(mini: Mini, name: str, topic_id: int, argument: object) -> Mini:
    has_tail = any(isinstance(extent, block.Block) for extent in mini.extents.get(topic_id, []))
    if name == "append":
        append(mini, topic_id, argument)  # type: ignore[arg-type]
    elif name == "delete" and topic_id in mini.heads:
        first, more = argument  # type: ignore[misc]
        mini.delete(topic_id, first, first + more)
    elif name == "seal" and has_tail:
        mini.turn()
        mini.seal(topic_id)
    elif name == "relocate" and any(not found.is_cold for found in mini.segments.get(topic_id, [])):
        mini.relocate(topic_id)
    elif name == "checkpoint":
        mini.checkpoint()
    elif name == "restart":
        mini.turn()
        assert isinstance(mini.disk, FakeDisk)
        mini.disk.crash("kill", random.Random(1))
        mini = Mini(mini.disk, wal_file_bytes=1024)
    mini.turn()
    return mini


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, min_size=1, max_size=25))
def test_a_reader_written_from_the_document_finds_the_same(steps: list[tuple[str, int, object]]) -> None:
    """STORE-15: docs/storage-format.md and a short independent reader agree."""
    disk = FakeDisk()
    mini = Mini(disk, wal_file_bytes=1024)
    for name, topic_id, argument in steps:
        mini = take(mini, name, topic_id, argument)
    found = read(disk)
    assert {key: row["data"] for key, row in found.records.items()} == mini.records()
    for (topic_id, seq), row in found.records.items():
        extent = next(extent for extent in mini.extents[topic_id] if extent.first_seq <= seq <= extent.last_seq)
        content, i = resolve(extent.block), seq - extent.first_seq
        assert (row["ts"], row["node"], row["tag"]) == (content.columns.ts[i], content.node(i), content.tag(i))
        assert (row["meta"] or None) == content.meta(i)
    mini.checkpoint()
    listed = read(disk)
    assert {topic_id: state["head_seq"] for topic_id, state in listed.states.items()} == mini.heads
    for segments in mini.segments.values():
        for made in segments:
            tags = resolve(made.tags)
            texts = {text: seqs for (topic_id, text), seqs in listed.tags.items() if topic_id == made.name.topic_id}
            for text, seqs in texts.items():
                assert set(tags.equal(text)) <= set(seqs)
            assert set(tags.starting(b"")) <= set().union(*texts.values())
