"""Attacks on the disk: fill it, delete everything at once, and delete a little from everything."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from tests.hostile.attack import Target, attack

MIB = 1 << 20
JSON = {"Content-Type": "application/json"}
ROOM_BYTES = 300 * MIB
BATCH = {"records": [{"data": "x" * 10_000} for _ in range(200)]}
COMES_BACK_S = 15.0
SMALL = {"records": [{"data": {"n": i, "text": "y" * 80}, "tag": f"t{i % 10}"} for i in range(1_000)]}
SEGMENTS = 40


def _little_room() -> dict[str, object]:
    """What leaves the server about `ROOM_BYTES` of the disk on which its directory will be."""
    return {"min_free_bytes": max(0, shutil.disk_usage(tempfile.gettempdir()).free - ROOM_BYTES)}


def _data_dir(target: Target) -> Path:
    environ = Path(f"/proc/{target.pid}/environ").read_bytes().split(b"\0")
    return Path(next(entry for entry in environ if entry.startswith(b"TOPICS_DATA_DIR=")).partition(b"=")[2].decode())


def _taken(directory: Path) -> int:
    found = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                found += (Path(folder) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return found


@attack("disk-fills", settings=_little_room, in_slice=False)
def disk_fills(target: Target) -> None:
    """Fills the disk until writes are refused, deletes its topic, and expects that writes work again within seconds."""
    for _ in range(1_000):
        answer = target.request("POST", "/v0/topics/filling", BATCH, JSON)
        if answer.status == 503:
            break
        assert answer.status in (200, 201, 429), answer
    else:
        raise AssertionError("the disk was never full")
    assert answer.json["error"]["code"] == "storage_full", answer
    assert target.request("DELETE", "/v0/topics/filling").status == 200
    ends = time.monotonic() + COMES_BACK_S
    while target.request("POST", "/v0/topics/after", BATCH, JSON).status not in (200, 201):
        assert time.monotonic() < ends, "the disk is still full, though everything on it is deleted"
        time.sleep(0.2)


@attack("deletes-give-room-back", settings={"segment_max_bytes": 4 * MIB})
def deletes_give_room_back(target: Target) -> None:
    """Writes 40 MB, deletes all of it, and expects that its segments are gone within seconds."""
    for _ in range(20):
        assert target.request("POST", "/v0/topics/gone", BATCH, JSON).status in (200, 201)
    segments = _data_dir(target) / "segments"
    ends = time.monotonic() + COMES_BACK_S
    while _taken(segments) < 20 * MIB:
        assert time.monotonic() < ends, "nothing is sealed"
        time.sleep(0.1)
    assert target.request("POST", "/v0/topics/gone/delete", {"before_seq": 1 << 40}, JSON).status == 200
    ends = time.monotonic() + COMES_BACK_S
    while _taken(segments) > MIB:
        assert time.monotonic() < ends, "the room is not given back"
        time.sleep(0.2)


def _many_segments(target: Target) -> None:
    for _ in range(SEGMENTS):
        assert target.request("POST", "/v0/topics/erased", SMALL, JSON).status in (200, 201)
        time.sleep(0.05)


@attack(
    "a-tenth-of-everything-is-erased",
    prepare=_many_segments,
    settings={"erase_after_ms": 10_000, "segment_max_events": 1_000},
    in_slice=False,
)
def a_tenth_of_everything_is_erased(target: Target) -> None:
    """Deletes a tenth of the records of every segment, so that all of them have to be rewritten."""
    deleted_ms = int(time.time() * 1000)
    assert target.request("POST", "/v0/topics/erased/delete", {"match": "t3"}, JSON).status == 200
    ends = time.monotonic() + 40
    while target.request("GET", "/v0/topics/erased").json["erased_before_ts"] < deleted_ms:
        assert time.monotonic() < ends, "deleted text is still on the disk"
        time.sleep(0.2)
