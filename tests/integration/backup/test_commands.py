"""`topics backup`, `topics verify` and `topics restore` against a real server (the BACKUP rules)."""

from __future__ import annotations

import itertools
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.harness.api import until
from topics import cli
from topics.backup import manifest
from topics.engine.restart.restored import JUMP_MIN
from topics.testing import ServerProcess

SEGMENT = 100


def topics(*arguments: object) -> Result:
    """A command in this process."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


class Site:
    """A server with a directory of backups, and data directories restored from them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = itertools.count(1)
        self.server = ServerProcess(
            data_dir=root / "data", cold_dir=root / "cold", segment_max_events=SEGMENT, hot_retain_segments=2
        )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """What the server answers."""
        answer = self.server.request(method, f"/v0/{path}", json={} if body is None else body)
        assert answer.status in (200, 201), answer
        return answer.json

    def write(self, topic: str, n: int, **fields: Any) -> list[int]:
        """Append records; their seqs."""
        records = [{"data": i, **fields} for i in range(n)]
        seqs: list[int] = self.call("POST", f"topics/{topic}", {"records": records})["seqs"]
        return seqs

    def backup(self, target: str = "backups") -> Path:
        """Take a backup; where it is."""
        done = topics("backup", self.root / target, "--url", self.server.url)
        assert done.exit_code == 0, done.output
        return Path(done.stdout.partition(": ")[0])

    def restore(self, source: Path, *options: str) -> Path:
        """A data directory made of a backup."""
        target = self.root / f"restored-{next(self.places)}"
        done = topics("restore", source, target, *options)
        assert done.exit_code == 0, done.output
        return target

    def sealed(self, topic: str, segments: int) -> None:
        """Wait until a topic has so many segments."""
        until(lambda: len(self.state(f"{topic}/plan?segments=true")["segments"]) >= segments, "seal")

    def state(self, path: str) -> Any:
        """What the server says about a topic."""
        return self.server.request("GET", f"/v0/topics/{path}").json


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    with made.server:
        yield made


@pytest.fixture
def name(topic_name: str, site: Site) -> str:
    site.call("PUT", f"topics/{topic_name}", {"durability": "disk"})
    return topic_name


def files(backup: Path, kind: str) -> dict[str, int]:
    """The inode of each file of a backup with this suffix."""
    return {path.name: path.stat().st_ino for path in (backup / "segments").glob(f"*.{kind}")}


def test_only_new_segments_are_copied(site: Site, name: str) -> None:
    """BACKUP-4: segments that the last backup has are shared with it, also after deletes in them."""
    for number in range(3):
        site.write(name, SEGMENT, tag="old")
        site.sealed(name, number + 1)
    first = site.backup()
    site.call("POST", f"topics/{name}/delete", {"before_seq": 10})
    site.write(name, SEGMENT)
    site.sealed(name, 4)
    second = site.backup()
    before, after = files(first, "data"), files(second, "data")
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1
    assert len(files(second, "flags")) > len(files(first, "flags"))
    # The one that is shared has not changed, and the flags of the second are not the first's.
    assert list(manifest.damage(first, site_manifest(first).files)) == []
    counts = []
    for backup in (first, second):
        with ServerProcess(data_dir=site.restore(backup)) as restored:
            counts.append(restored.request("GET", f"/v0/topics/{name}").json["count"])
    assert counts == [3 * SEGMENT, 4 * SEGMENT - 9]


def site_manifest(backup: Path) -> manifest.Manifest:
    found = manifest.read(backup)
    assert found is not None
    return found


def test_segment_of_another_server_is_not_taken_for_the_same(site: Site, tmp_path: Path) -> None:
    """BACKUP-4: two servers have segments of the same names, and a directory of backups may meet both."""
    kept = []
    for server in range(2):
        with ServerProcess(segment_max_events=SEGMENT) as other:
            records = [{"data": f"{server}"} for _ in range(SEGMENT)]
            other.request("POST", "/v0/topics/t", json={"records": records})
            plan = "/v0/topics/t/plan?segments=true"
            until(lambda other=other, plan=plan: bool(other.request("GET", plan).json["segments"]), "seal")
            done = topics("backup", tmp_path / "both", "--url", other.url)
            assert done.exit_code == 0, done.output
            kept.append(Path(done.stdout.partition(": ")[0]))
    one, two = (next((backup / "segments").glob("*.data")) for backup in kept)
    assert one.name == two.name
    assert b'"0"' in one.read_bytes()
    assert b'"1"' in two.read_bytes()


def test_flipped_byte_is_found_in_every_file(site: Site, name: str, tmp_path: Path) -> None:
    """BACKUP-5: flags and manifest included, which have no checksum of their own in a data directory."""
    site.write(name, SEGMENT)
    site.sealed(name, 1)
    site.call("POST", f"topics/{name}/delete", {"before_seq": 5})
    backup = site.backup()
    assert topics("verify", backup).exit_code == 0
    copy = tmp_path / "copy"
    for suffix in ("data", "idx", "flags", "snap", "wal", "LAYOUT", "BACKUP"):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(backup, copy)
        path = next(path for path in sorted(copy.rglob(f"*{suffix}")) if path.is_file())
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        found = topics("verify", copy)
        assert found.exit_code != 0, suffix
        assert "DAMAGE" in found.output, suffix
        refused = topics("restore", copy, tmp_path / f"from-{suffix}")
        assert refused.exit_code == 1, suffix
        assert refused.stderr.count("\n") == 1, refused.stderr
        path.unlink()
        assert topics("verify", copy).exit_code != 0 or suffix == "BACKUP"


def test_restored_topic_goes_on_above_everything_that_was_handed_out(site: Site, name: str) -> None:
    """BACKUP-7: a cursor above the backup's head gets a tombstone, and no seq is handed out again."""
    site.write(name, 20)
    backup = site.backup()
    lost = site.write(name, 30)
    with ServerProcess(data_dir=site.restore(backup)) as restored:
        path = f"/v0/topics/{name}"
        for cursor in (20, 35, lost[-1]):
            got = restored.request("POST", f"{path}/diff", json={"from_seq": cursor}).json
            assert got["records"] == []
            assert (got["tombstone"]["gap_from"], got["tombstone"]["reason"]) == (cursor + 1, "restore")
            assert got["tombstone"]["gap_to"] == got["head_seq"] == 20 + JUMP_MIN
        [seq] = restored.request("POST", path, json={"records": [{"data": "new"}]}).json["seqs"]
        assert seq == 21 + JUMP_MIN > lost[-1]
        got = restored.request("POST", f"{path}/diff", json={"from_seq": 15}).json
        assert [record["$seq"] for record in got["records"]] == [16, 17, 18, 19, 20]
        beyond = restored.request("POST", f"{path}/diff", json={"from_seq": seq + 10}).json
        assert beyond["tombstone"]["reason"] == "recreated"
        epoch = restored.request("PUT", f"/v0/topics/{name}-new", json={})
        assert epoch.status == 201
        assert restored.request("GET", f"/v0/topics/{name}-new/plan").json["epoch"] > JUMP_MIN
        # It is sealed, merged and restarted like any other, however far apart its seqs are.
        for _ in range(3):
            records = [{"data": i, "tag": "far"} for i in range(4000)]
            restored.request("POST", path, json={"records": records})
        restored.restart()
        state = restored.request("GET", path).json
        assert state["count"] == 20 + 1 + 12_000
        removed = restored.request("POST", f"{path}/delete", json={"match": "far"}).json
        assert removed["deleted"] == 12_000


def test_leases_routers_keys_and_cold_segments_are_restored(site: Site, name: str) -> None:
    """BACKUP-7: everything is as it was at the moment of the backup."""
    queue, copies = f"{name}-jobs", f"{name}-copies"
    site.call("PUT", f"topics/{queue}", {"type": "queue", "durable": True, "idempotency_window_ms": 600_000})
    site.call("PUT", f"routers/{name}", {"source": name, "dest": copies})
    jobs = {"records": [{"data": i} for i in range(5)], "idempotency_key": "once"}
    site.call("POST", f"topics/{queue}", jobs)
    claim = {"node": "w", "max": 2, "lease_ms": 600_000}
    leased = [job["$seq"] for job in site.call("POST", f"topics/{queue}/claim", claim)["claimed"]]
    for number in range(6):
        site.write(name, SEGMENT)
        site.sealed(name, min(number, 3) + 1)
    until(lambda: any(found["cold"] for found in site.state(f"{name}/plan?segments=true")["segments"]), "move")
    backup = site.backup()
    with ServerProcess(data_dir=site.restore(backup)) as restored:
        state = restored.request("GET", f"/v0/topics/{queue}").json["queue"]
        assert (state["ready"], state["in_flight"]) == (3, 2)
        acked = restored.request("POST", f"/v0/topics/{queue}/ack", json={"node": "w", "seqs": leased}).json
        assert acked["acked"] == 2
        assert restored.request("POST", f"/v0/topics/{queue}", json=jobs).json["deduped"] is True
        read = [
            record["data"]
            for cursor in range(0, 6 * SEGMENT, SEGMENT)
            for record in restored.request(
                "POST", f"/v0/topics/{name}/diff", json={"from_seq": cursor, "limit": SEGMENT}
            ).json["records"]
        ]
        assert read == list(range(SEGMENT)) * 6
        assert restored.request("GET", f"/v0/topics/{copies}").json["count"] == 6 * SEGMENT
        restored.request("POST", f"/v0/topics/{name}", json={"records": [{"data": "more"}]})
        got = restored.request("POST", f"/v0/topics/{copies}/diff", json={"from_seq": 6 * SEGMENT}).json
        assert got["tombstone"]["reason"] == "restore"
        after = {"from_seq": got["tombstone"]["gap_to"], "wait_ms": 30_000}
        got = restored.request("POST", f"/v0/topics/{copies}/diff", json=after, timeout_s=60).json
        assert [record["data"] for record in got["records"]] == ["more"]


def test_until_leaves_out_what_was_written_later_and_says_so(site: Site, name: str) -> None:
    """BACKUP-8: the records after a time are part of the lost range; their idempotency keys are forgotten."""
    site.write(name, 2 * SEGMENT)
    site.sealed(name, 1)
    last = site.call("POST", f"topics/{name}/diff", {"from_seq": 2 * SEGMENT - 1})["records"][0]["$ts"]
    until(lambda: time.time() * 1000 > last + 2, "pass")
    late = {"records": [{"data": "late"}] * 150, "idempotency_key": "late"}
    site.call("PUT", f"topics/{name}", {"idempotency_window_ms": 600_000})
    site.call("POST", f"topics/{name}", late)
    site.sealed(name, 2)
    backup = site.backup()
    with ServerProcess(data_dir=site.restore(backup, "--until", str(last))) as restored:
        state = restored.request("GET", f"/v0/topics/{name}").json
        assert state["count"] == 2 * SEGMENT
        got = restored.request("POST", f"/v0/topics/{name}/diff", json={"from_seq": 2 * SEGMENT}).json
        assert got["records"] == []
        tombstone = got["tombstone"]
        assert (tombstone["gap_from"], tombstone["reason"]) == (2 * SEGMENT + 1, "restore")
        assert tombstone["gap_to"] >= 2 * SEGMENT + 150 + JUMP_MIN
        again = restored.request("POST", f"/v0/topics/{name}", json=late).json
        assert again["deduped"] is False
    missing = topics("restore", backup, site.root / "never", "--until", "yesterday")
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)


def test_nobody_else_may_read_a_backup_or_what_is_restored_of_it(site: Site, name: str, tmp_path: Path) -> None:
    """BACKUP-11: whatever the umask of the shell is; the files of a server are for its user alone."""
    site.write(name, 3)
    mask = os.umask(0o022)
    try:
        for target in ("kept", "one.tar"):
            assert topics("backup", tmp_path / target, "--url", site.server.url).exit_code == 0
            assert topics("restore", tmp_path / target, tmp_path / f"from-{target}").exit_code == 0
        assert os.umask(0o022) == 0o022, "the caller's own is as it was"
    finally:
        os.umask(mask)
    made = list(tmp_path.rglob("*"))
    assert len(made) > 20
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_restore_of_nothing_leaves_nothing(tmp_path: Path) -> None:
    """BACKUP-11."""
    (tmp_path / "text").write_text("no backup")
    for source, said in (("nowhere", "it does not exist"), ("text", "a tar file ends in")):
        refused = topics("restore", tmp_path / source, tmp_path / "data")
        assert (refused.exit_code, said in refused.output) == (1, True)
        assert not (tmp_path / "data").exists()


DAMAGED_BYTES = 64


def within(archive: Path) -> int:
    """A place in an archive that is part of a file: between the files, nothing means anything."""
    if archive.suffix == ".gz":
        return archive.stat().st_size // 2
    with tarfile.open(archive, "r:") as opened:
        largest = max(opened, key=lambda member: member.size)
    return largest.offset_data + largest.size // 2


def test_archive_holds_a_whole_backup(site: Site, name: str, tmp_path: Path) -> None:
    """BACKUP-10: a file instead of a directory; a damaged one is refused."""
    site.write(name, 30)
    for suffix in ("tar", "tar.gz"):
        archive = tmp_path / f"one.{suffix}"
        archive.write_bytes(b"the archive before")
        assert topics("backup", archive, "--url", site.server.url).exit_code == 0
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]
        assert topics("verify", archive).exit_code == 0
        target = site.restore(archive)
        content = bytearray(archive.read_bytes())
        at = within(archive)
        # Some bytes: with one bit of a compressed file flipped, it may still give the very same bytes.
        content[at : at + DAMAGED_BYTES] = bytes(255 - byte for byte in content[at : at + DAMAGED_BYTES])
        archive.write_bytes(content)
        assert topics("verify", archive).exit_code == 1
        assert topics("restore", archive, tmp_path / "no").exit_code == 1
        shutil.rmtree(tmp_path / "no")
        archive.unlink()
    with ServerProcess(data_dir=target) as restored:
        assert restored.request("GET", f"/v0/topics/{name}").json["count"] == 30


def test_no_server_starts_on_a_backup_or_half_a_restore(site: Site, tmp_path: Path) -> None:
    """BACKUP-9: it would change files that other backups share, or hand out seqs again."""
    backup = site.backup()
    with pytest.raises(AssertionError, match="topics restore"), ServerProcess(data_dir=backup):
        pass
    assert topics("verify", backup).exit_code == 0
    target = tmp_path / "cut-off"
    (target / "wal").mkdir(parents=True)
    (target / "RESTORING").touch()
    with pytest.raises(AssertionError, match="cut off"), ServerProcess(data_dir=target):
        pass
    assert topics("restore", backup, target).exit_code == 0
    refused = topics("restore", backup, target)
    assert (refused.exit_code, "is not empty" in refused.stderr) == (1, True)
    with ServerProcess(data_dir=target):
        pass


def test_older_backups_are_removed_only_when_asked_for(site: Site) -> None:
    """BACKUP-5: `--keep`."""
    for _ in range(3):
        site.backup("rotated")
    kept = sorted(path.name for path in (site.root / "rotated").iterdir() if not path.name.startswith("."))
    assert len(kept) == 3
    assert topics("backup", site.root / "rotated", "--keep", 2, "--url", site.server.url).exit_code == 0
    left = sorted(path.name for path in (site.root / "rotated").iterdir() if not path.name.startswith("."))
    assert len(left) == 2
    assert left[0] == kept[2]


def test_failures_are_one_line(site: Site, tmp_path: Path) -> None:
    """CLI-3: no server, no backup, no place."""
    for arguments in (
        ("backup", tmp_path / "b", "--url", "http://127.0.0.1:9"),
        ("restore", tmp_path, tmp_path / "c"),
        ("restore", tmp_path / "no.tar", tmp_path / "d"),
        ("backup", site.server.data_dir, "--url", site.server.url),
    ):
        failed = topics(*arguments)
        assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1), failed.output
