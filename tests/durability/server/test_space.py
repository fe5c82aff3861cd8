"""A server process gives room back by itself, and goes on after its file system was full (SPACE-2 to SPACE-4)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import until
from topics.testing import ServerProcess

MIB = 1 << 20
DEADLINE_S = 30.0
RECORDS = {"records": [{"data": "x" * 10_000} for _ in range(100)]}


def taken(directory: Path) -> int:
    """What the files of a directory take on the disk."""
    found = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                found += (Path(folder) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return found


def post(server: ServerProcess, topic: str) -> int:
    return server.request("POST", f"/v0/topics/{topic}", json=RECORDS).status


@pytest.mark.parametrize("how", ["delete", "topic", "ttl"])
def test_room_comes_back_from_an_idle_server(how: str) -> None:
    """SPACE-2: within 10 s of what freed it, without another write."""
    with ServerProcess(segment_max_bytes=4 * MIB) as server:
        path = "/v0/topics/t"
        server.request("PUT", path, json={"ttl_ms": 4000} if how == "ttl" else {})
        for _ in range(40):
            assert post(server, "t") in (200, 201)
        last = time.monotonic()
        full = taken(server.data_dir / "segments") + taken(server.data_dir / "wal")
        assert full > 40 * MIB
        if how == "delete":
            server.request("POST", path + "/delete", json={"before_seq": 1 << 40})
        elif how == "topic":
            server.request("DELETE", path)
        freed = time.monotonic() if how != "ttl" else last + 4

        def left() -> bool:
            return taken(server.data_dir / "segments") < MIB

        until(left, "the segments are gone", DEADLINE_S)
        assert time.monotonic() - freed < 15, "10 s, and some for a busy machine"


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 MiB in memory; only root may make one."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def fill(server: ServerProcess, topic: str) -> Any:
    """Write until the server refuses; why."""
    for _ in range(200):
        answer = server.request("POST", f"/v0/topics/{topic}", json=RECORDS)
        if answer.status not in (200, 201):
            return answer
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("how", ["records", "topic", "elsewhere"])
def test_a_full_file_system_recovers_without_a_restart(small_file_system: Path, how: str) -> None:
    """SPACE-3: `storage_full`, then room is made, then writes work; nothing that was acked is lost."""
    foreign = small_file_system / "foreign"
    foreign.write_bytes(bytes(88 * MIB))
    with ServerProcess(small_file_system / "data", min_free_bytes=64 * MIB, segment_max_bytes=4 * MIB) as server:
        assert server.request("POST", "/v0/topics/kept", json={"records": [{"data": 1}]}).status in (200, 201)
        refused = fill(server, "t")
        assert (refused.status, refused.json["error"]["code"]) == (503, "storage_full")
        assert server.request("GET", "/v0/ready").status == 200
        assert "\ntopics_disk_full 1.0\n" in server.request("GET", "/v0/metrics").body.decode()
        if how == "elsewhere":
            foreign.unlink()
        elif how == "topic":
            assert server.request("DELETE", "/v0/topics/t").status == 200
        else:
            head = server.request("GET", "/v0/topics/t").json["head_seq"]
            assert server.request("POST", "/v0/topics/t/delete", json={"before_seq": head}).status == 200
        until(lambda: post(server, "u") in (200, 201), "writes work again", DEADLINE_S)
        assert post(server, "u") in (200, 201)
        server.kill()
        server.start()
        assert server.request("GET", "/v0/topics/kept").json["count"] == 1
        assert server.request("GET", "/v0/topics/u").json["count"] >= 200
