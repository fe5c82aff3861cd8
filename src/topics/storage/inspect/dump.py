"""Dump: everything in a data directory as JSON lines, for a look at it with ordinary tools.

One line per frame, snapshot section, sealed Block and damaged region, each with its file and offset. Only reads, and
takes no lock: use it on a stopped server's directory or on a copy. Nothing is interpreted beyond the codec, so a
damaged directory can be dumped as far as it can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from topics.storage import block
from topics.storage.block import Block
from topics.storage.disk import Disk, RealDisk
from topics.storage.flags import DELETED
from topics.storage.segment import format as segment
from topics.storage.snapshot import snapshot
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, scan

Line = dict[str, Any]


def dump(directory: str, write: Callable[[str], object], *, disk: Disk | None = None) -> int:
    """Give every line to `write`, without its newline.

    0 where all could be read, 1 where something was damaged, 2 where there is nothing.
    """
    disk = RealDisk() if disk is None else disk
    damaged = False
    empty = True
    for line in lines(disk, directory):
        empty = False
        damaged = damaged or "damage" in line
        write(msgspec.json.encode(line).decode())
    return 2 if empty else int(damaged)


def lines(disk: Disk, directory: str) -> Iterator[Line]:
    """Snapshots, then the WAL in the order of its files, then segments."""
    for name in disk.list(f"{directory}/snapshots"):
        if snapshot.parse_name(name) is not None:
            yield from _frames(disk, directory, f"snapshots/{name}", snapshot.HEADER_BYTES)
    for name in disk.list(f"{directory}/wal"):
        if walfile.parse_name(name) is not None:
            yield from _frames(disk, directory, f"wal/{name}", walfile.HEADER_BYTES)
    for name in disk.list(f"{directory}/segments"):
        parsed = segment.parse_name(name)
        if parsed is not None and parsed[1] == "data":
            yield from _segment(disk, directory, f"segments/{name}")


def _frames(disk: Disk, directory: str, file: str, at: int) -> Iterator[Line]:
    data, used, _ = walfile.read_file(disk, f"{directory}/{file}")
    for found in scan.walk(data, at, used, torn_allowed=False):
        if isinstance(found, scan.Region):
            yield {
                "file": file,
                "offset": found.offset,
                "length": found.length,
                "damage": found.reason,
                "lost": [lost._asdict() for lost in found.lost],
                "lost_frames": [lost._asdict() for lost in found.lost_frames],
                "complete": found.complete,
            }
        else:
            yield _frame(data, file, found)


def _frame(data: bytes, file: str, entry: scan.Entry) -> Line:
    payload = data[entry.at : entry.at + entry.length]
    line: Line = {
        "file": file,
        "offset": entry.at - frame.HEADER_BYTES,
        "kind": kind_name(entry.kind),
        "lsn": entry.lsn,
        "topic_id": entry.topic_id,
    }
    try:
        _add_payload(line, entry, payload)
    except (msgspec.MsgspecError, block.BlockError) as error:
        # The checksum holds, so these are the bytes that were written, by a program that this one does not know.
        line["damage"], line["problem"], line["payload"] = "unknown", str(error), payload.hex()
    return line


def _add_payload(line: Line, entry: scan.Entry, payload: bytes) -> None:
    if entry.kind == frame.APPEND:
        found, end = block.decode(payload, with_flags=False)
        line["first_seq"], line["n"], line["records"] = entry.first_seq, entry.n, records(found)
        if end < len(payload):
            line["extra"] = payload[end:].hex()
    elif entry.kind == snapshot.BLOCK:
        found, _ = block.decode(payload)
        line["first_seq"], line["n"], line["records"] = entry.first_seq, entry.n, records(found)
    elif entry.kind == snapshot.TOPIC:
        line["state"] = msgspec.to_builtins(snapshot.decode_topic(payload))
    elif entry.kind in frame.PAYLOADS:
        line["payload"] = _readable(frame.decode_payload(entry.kind, payload))
    else:
        line["payload"] = payload.hex()


def _segment(disk: Disk, directory: str, file: str) -> Iterator[Line]:
    handle = disk.open(f"{directory}/{file}")
    try:
        data = disk.read(handle, 0, disk.size(handle))
    finally:
        disk.close(handle)
    at = segment.HEADER_BYTES
    header = segment.decode_header(data, segment.DATA_MAGIC, file)
    end = len(data) if header is None else min(len(data), header.blocks_end)
    for place in segment.scan_blocks(data):
        if place.offset > at:
            yield {"file": file, "offset": at, "length": place.offset - at, "damage": "corrupt"}
        found, at = block.decode(data, place.offset)
        yield {
            "file": file,
            "offset": place.offset,
            "kind": "block",
            "topic_id": found.topic_id,
            "first_seq": found.first_seq,
            "n": found.n,
            "records": records(found),
        }
    if at < end:
        yield {"file": file, "offset": at, "length": end - at, "damage": "corrupt"}


def kind_name(kind: int) -> str:
    """The name of a frame's or section's kind."""
    names = {snapshot.TOPIC: "topic", snapshot.BLOCK: "block", snapshot.END: "end"}
    return names.get(kind) or frame.NAMES.get(kind) or f"kind_{kind}"


def records(found: Block) -> list[Line]:
    """The records of a Block as JSON objects; `data` and `meta` are the stored JSON text itself."""
    rows: list[Line] = []
    ts = found.columns.ts
    for i in range(found.n):
        row: Line = {"seq": found.first_seq + i, "ts": ts[i]}
        node, tag, meta = found.node(i), found.tag(i), found.meta(i)
        if node is not None:
            row["node"] = node.decode("utf-8", "replace")
        if tag is not None:
            row["tag"] = tag.decode("utf-8", "replace")
        if meta is not None:
            row["meta"] = msgspec.Raw(meta)
        if found.data(i):
            row["data"] = msgspec.Raw(found.data(i))
        else:
            row["erased"] = True
        if found.flags is not None and found.flags[i] == DELETED:
            row["deleted"] = True
        rows.append(row)
    return rows


def _readable(payload: msgspec.Struct) -> Line:
    fields = msgspec.structs.asdict(payload)
    if isinstance(payload, frame.Deletion):
        fields["ranges"] = list(payload.runs())
    return {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else value for key, value in fields.items()
    }
