"""What `topics doctor` makes of what it finds."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from topics.commands import machine_checks
from topics.commands.machine_checks import file_system, look_at, sync_finding
from topics.commands.server_checks import clock_finding, of_metrics

WELL: dict[str, Any] = {
    "topics_wal_fsyncs_total": 5.0,
    "topics_wal_fsync_latency_us_bucket": {"100": 90.0, "5000": 100.0, "+Inf": 100.0},
}


def levels(metrics: Mapping[str, Any]) -> dict[str, str]:
    return {finding.check: finding.level for finding in of_metrics(metrics)}


def test_a_server_that_is_well_has_nothing_to_change() -> None:
    """CLI-19."""
    assert set(levels(WELL).values()) == {"ok"}


@pytest.mark.parametrize(
    ("metrics", "check", "level"),
    [
        ({"topics_wal_read_only": 1}, "log", "bad"),
        ({"topics_corruption_total": 2.0}, "damage", "bad"),
        ({"topics_disk_full": 1.0, "topics_disk_free_bytes": 1000.0}, "space", "bad"),
        ({"topics_pressure_level": 2}, "pressure", "note"),
        ({"topics_pressure_level": 4}, "pressure", "bad"),
        ({"topics_buffered_refused_total": 1.0}, "clients", "note"),
        ({"topics_wal_submit_full_total": 1.0}, "writers", "note"),
        ({"process_open_fds": 900.0, "process_max_fds": 1000.0}, "files", "note"),
        ({"topics_wal_fsync_latency_us_bucket": {"5000": 90.0, "50000": 100.0, "+Inf": 100.0}}, "syncs", "note"),
        ({"topics_wal_fsync_latency_us_bucket": {"5000": 90.0, "+Inf": 100.0}}, "syncs", "note"),
    ],
)
def test_what_is_wrong_with_a_server_is_found_with_what_to_do(metrics: dict[str, Any], check: str, level: str) -> None:
    """CLI-19: the alarms of docs/operations.md."""
    found = {finding.check: finding for finding in of_metrics(WELL | metrics)}
    assert found[check].level == level
    assert found[check].advice


@pytest.mark.parametrize(
    ("server_s", "level", "said"),
    [
        (1000.5, "ok", "agrees"),
        (998.5, "ok", "agrees"),
        (1002.5, "ok", "agrees"),
        (4601.0, "note", "1h ahead of"),
        (940.0, "note", "1m behind"),
    ],
)
def test_a_clock_that_is_not_ours_is_found(server_s: float, level: str, said: str) -> None:
    """CLI-19: what the answer took is not held against the server."""
    (found,) = clock_finding({"topics_time_seconds": server_s}, 1000.0, 1001.0)
    assert (found.level, said in found.found) == (level, True), found.found
    assert list(clock_finding({}, 0.0, 1.0)) == [], "an older server does not say its time"


def test_the_speed_of_a_disk_is_judged() -> None:
    """CLI-19: slow is slow, and too fast is a promise that is not kept."""
    assert sync_finding([1.0, 2.0, 30.0], "ext4").level == "ok"
    assert sync_finding([50.0, 60.0], "ext4").level == "note"
    assert "no disk is that fast" in sync_finding([0.001, 0.002], "overlay").advice


def test_the_file_system_of_a_directory_is_the_innermost_mount(tmp_path: Path) -> None:
    mounts = [("/", "ext4"), (str(tmp_path.parent), "xfs"), (str(tmp_path), "tmpfs"), (f"{tmp_path}x", "nfs")]
    assert file_system(tmp_path / "none", mounts) == "tmpfs"
    assert file_system(tmp_path.parent, mounts) == "xfs"
    assert file_system(Path("/"), mounts) == "ext4"
    assert file_system(tmp_path, [*mounts, (str(tmp_path), "nfs")]) == "nfs", "the later mount covers the earlier"
    assert file_system(tmp_path, []) == "unknown"


def machine(tmp_path: Path, **environ: str) -> dict[str, str]:
    return {each.check: each.level for each in look_at(environ, tmp_path)}


def test_a_machine_is_looked_at_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19."""
    monkeypatch.setattr(machine_checks, "_mounts", lambda: [("/", "ext4")])
    monkeypatch.setattr(machine_checks, "sync_times_ms", lambda directory: [1.0])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1_000_000))
    found = machine(tmp_path)
    assert (found["settings"], found["data"], found["disk"], found["files"]) == ("ok", "ok", "ok", "ok")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    assert machine(tmp_path)["files"] == "bad"
    monkeypatch.setattr(machine_checks, "_mounts", lambda: [("/", "tmpfs")])
    assert machine(tmp_path)["disk"] == "bad"
    assert machine(tmp_path / "later")["data"] == "ok", "a directory that is made at the first start"
    assert machine(tmp_path, TOPICS_MIN_FREE_BYTES=str(1 << 60))["space"] == "bad"
    assert machine(tmp_path, TOPICS_PORT="x")["settings"] == "bad"
    assert machine(tmp_path, TOPICS_MAX_TOPIC="1")["settings"] == "note"


def test_a_data_directory_that_was_only_guessed_is_not_taken_for_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-19: on a machine with a service the settings are not in the environment of a shell."""
    monkeypatch.chdir(tmp_path)
    found = {each.check: each for each in look_at({}, None)}
    assert (found["data"].level, "--data-dir" in found["data"].advice) == ("note", True)
    assert {each.check: each for each in look_at({"TOPICS_DATA_DIR": "there"}, None)}["data"].level == "ok"


def test_syncs_are_measured_in_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    """CLI-19."""
    took = machine_checks.sync_times_ms(tmp_path)
    assert took
    assert min(took) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_somebody_else_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert machine(tmp_path / "data")["data"] == "bad"
