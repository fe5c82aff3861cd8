"""A reader of data directories, written from docs/storage-format.md alone. It uses nothing of the product."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import xxhash

Records = dict[tuple[int, int], dict[str, Any]]


def number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def checked(data: bytes) -> bool:
    """Whether the last 8 bytes are the checksum of the rest."""
    return number(data, len(data) - 8, 8) == xxhash.xxh3_64_intdigest(data[:-8])


def read_block(data: bytes, at: int, *, flags: bool) -> tuple[int, list[dict[str, Any]], int]:
    """Topic id, records and the end of the Block at `at`."""
    assert data[at : at + 5] == b"TBLK\x01"
    columns, n, topic_id, first_seq = (
        data[at + 5],
        number(data, at + 8, 4),
        number(data, at + 16, 8),
        number(data, at + 24, 8),
    )
    start = at
    sizes = struct.unpack_from("<4I", data, at + 32)
    at += 48
    ts = struct.unpack_from(f"<{n}q", data, at)
    at += 8 * n
    lengths: list[list[int | None]] = []
    for bit, (code, width, absent) in enumerate((("H", 2, 65535), ("H", 2, 65535), ("I", 4, 0), ("I", 4, -1))):
        if bit < 3 and not columns >> bit & 1:
            lengths.append([None] * n)
            continue
        lengths.append([None if size == absent else size for size in struct.unpack_from(f"<{n}{code}", data, at)])
        at += width * n
    texts: list[list[bytes | None]] = []
    for column, total in zip(lengths, sizes, strict=True):
        assert sum(size or 0 for size in column) == total
        texts.append([])
        for size in column:
            texts[-1].append(None if size is None else data[at : at + size])
            at += size or 0
    at += 8
    assert checked(data[start:at])
    deleted = [False] * n
    if flags:
        deleted = [flag == 0xD5 for flag in data[at : at + n]]
        at += n
    records = []
    for i in range(n):
        node, tag, meta, body = (column[i] for column in texts)
        assert body or (columns & 16 and not (node or tag or meta))
        records.append(
            {
                "seq": first_seq + i,
                "ts": ts[i],
                "node": node,
                "tag": tag,
                "meta": meta,
                "data": body,
                "deleted": deleted[i] or not body,
            }
        )
    return topic_id, records, at


def read_frames(data: bytes, at: int) -> Iterator[dict[str, Any]]:
    """Every whole frame up to the first place where there is none."""
    while data[at : at + 4] == b"TFRM":
        length = number(data, at + 8, 4)
        end = at + 48 + (length + 7) // 8 * 8 + 8
        assert checked(data[at:end])
        assert number(data, at + 44, 4) == xxhash.xxh32_intdigest(data[at : at + 44])
        yield {
            "kind": data[at + 4],
            "copy": bool(data[at + 5] & 1),
            "n": number(data, at + 12, 4),
            "lsn": number(data, at + 16, 8),
            "topic_id": number(data, at + 24, 8),
            "first_seq": number(data, at + 32, 8),
            "payload": data[at + 48 : at + 48 + length],
        }
        at = end
    assert not data[at:].strip(b"\0")


def is_in(seq: int, first: int, rest: int | bytes) -> bool:
    """Whether a range of a DELETE has this seq: `rest` is its last one, or a bit for each."""
    if isinstance(rest, int):
        return first <= seq <= rest
    byte, bit = divmod(seq - first, 8)
    return 0 <= byte < len(rest) and bool(rest[byte] & 0x80 >> bit)


class Reader:
    """The topics and live records of a data directory, given as a mapping from relative path to bytes."""

    def __init__(self, files: dict[str, bytes], cold: dict[str, bytes]) -> None:
        assert files["LAYOUT"] == b"topics data directory, format 2\n"
        self.files = files
        self.cold = cold
        self.records: Records = {}
        self.states: dict[int, dict[str, Any]] = {}
        self.tags: dict[tuple[int, bytes], list[int]] = {}
        self.names: dict[int, str] = {}
        self._skip: dict[int, int] = {}
        self._skip_rest = 0
        snapshots = sorted(name for name in files if name.startswith("snapshots/") and name.endswith(".snap"))
        if snapshots:
            self._snapshot(files[snapshots[-1]])
        self._wal()

    def _add(self, topic_id: int, records: list[dict[str, Any]]) -> None:
        for record in records:
            if not record["deleted"]:
                self.records[topic_id, record["seq"]] = record

    def _snapshot(self, data: bytes) -> None:
        assert data[:8] == b"TOPICSNP"
        assert number(data, 8, 4) == 2
        assert checked(data[:64])
        self._skip_rest = number(data, 24, 8)
        sections = 0
        for section in read_frames(data, 64):
            if section["kind"] == 66:
                assert section["payload"][:64] == data[:64]
                assert number(section["payload"], 64, 8) == sections
                continue
            sections += 1
            if section["copy"]:
                continue
            topic_id = section["topic_id"]
            if section["kind"] == 64:
                state = self.states[topic_id] = msgspec.msgpack.decode(section["payload"])
                self._skip[topic_id] = section["lsn"]
                self.names[topic_id] = state["name"]
                for first_seq, n, _, edition in state.get("segments", []):
                    suffix = f"-{edition:08x}" if edition else ""
                    self._segment(f"{topic_id:016x}-{first_seq:016x}{suffix}", n, edition)
            elif section["kind"] == 65:
                _, records, end = read_block(section["payload"], 0, flags=True)
                assert end == len(section["payload"])
                self._add(topic_id, records)

    def _segment(self, name: str, n: int, edition: int) -> None:
        data = self.files.get(f"segments/{name}.data") or self.cold[f"{name}.data"]
        index = self.files[f"segments/{name}.idx"]
        flags = self.files.get(f"segments/{name}.flags", bytes(64))[64:].ljust(n, b"\0")
        for file, magic in ((data, b"TOPICSEG"), (index, b"TOPICIDX")):
            assert file[:8] == magic
            assert number(file, 8, 4) == 2
            assert checked(file[:64])
            assert number(file, 40, 8) == len(data)
            assert number(file, 48, 8) == edition
        blocks, first_seq = number(index, 12, 4), number(index, 24, 8)
        assert checked(index[64 : 64 + 56 * blocks + 8])
        at = place = 64
        count = 0
        for _ in range(blocks):
            assert number(index, place, 8) == at
            topic_id, records, end = read_block(data, at, flags=True)
            assert number(index, place + 8, 8) == records[0]["seq"]
            assert struct.unpack_from("<qq", index, place + 16) == (records[0]["ts"], records[-1]["ts"])
            texts = sum(len(record[key] or b"") for record in records for key in ("node", "tag", "meta", "data"))
            assert number(index, place + 32, 8) == texts + 21 * len(records)
            assert number(index, place + 40, 4) == end - at - len(records)
            assert number(index, place + 44, 4) == len(records)
            assert number(index, place + 48, 8) == sum(not record["data"] for record in records)
            for record in records:
                record["deleted"] = record["deleted"] or flags[count] == 0xD5
                count += 1
            self._add(topic_id, records)
            at, place = end, place + 56
        assert at == len(data) - 8
        assert count == n
        self._tags(topic_id, first_seq, index[place + 8 :])

    def _tags(self, topic_id: int, first_seq: int, data: bytes) -> None:
        assert checked(data)
        count, text_bytes = number(data, 0, 4), number(data, 4, 4)
        texts = 8 + 12 * count
        entries = [struct.unpack_from("<III", data, 8 + 12 * i) for i in range(count)]
        ends = [entry[0] for entry in entries[1:]] + [text_bytes]
        for (text_at, seqs_at, seqs), end in zip(entries, ends, strict=False):
            start = texts + text_bytes + 4 * seqs_at
            distances = struct.unpack_from(f"<{seqs}I", data, start)
            text = data[texts + text_at : texts + end]
            self.tags.setdefault((topic_id, text), []).extend(first_seq + distance for distance in distances)

    def _wal(self) -> None:
        names = sorted(name for name in self.files if name.startswith("wal/") and name.endswith(".wal"))
        frames: list[dict[str, Any]] = []
        for name in names:
            data = self.files[name]
            generation, shard, count = (int(part, 16) for part in name[4:-4].split("-"))
            assert data[:8] == b"TOPICWAL"
            assert number(data, 8, 4) == 1
            assert checked(data[:64])
            assert (number(data, 16, 8), number(data, 12, 4), number(data, 24, 8)) == (generation, shard, count)
            frames += read_frames(data, 64)
        for frame in sorted(frames, key=lambda frame: frame["lsn"]):
            if frame["kind"] == 255 or frame["lsn"] <= self._skip.get(frame["topic_id"], self._skip_rest):
                continue
            self._apply(frame)

    def _apply(self, frame: dict[str, Any]) -> None:
        topic_id, payload = frame["topic_id"], frame["payload"]
        if frame["kind"] == 4:
            of_topic, records, _ = read_block(payload, 0, flags=False)
            assert (of_topic, records[0]["seq"], len(records)) == (topic_id, frame["first_seq"], frame["n"])
            self._add(topic_id, records)
        elif frame["kind"] == 1:
            self.names[topic_id] = msgspec.msgpack.decode(payload)[0]
        elif frame["kind"] == 3:
            self.names.pop(topic_id, None)
            self.records = {key: record for key, record in self.records.items() if key[0] != topic_id}
        elif frame["kind"] == 5:
            before_seq, ranges = msgspec.msgpack.decode(payload)[:2]
            for key in [key for key in self.records if key[0] == topic_id]:
                if key[1] < before_seq or any(is_in(key[1], first, rest) for first, rest in ranges):
                    del self.records[key]
