"""Backups of a real server under full load, while server and command are killed again and again.

Whatever is killed when, a backup that has its name is whole: it holds everything that was acknowledged before it began,
nothing that was never written, each record once and under its seq. A server that starts on it hands out no seq again.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from tests.harness.kill import KillLoop, Ledger, Writer, post
from topics.backup import manifest
from topics.backup.backups import Backups
from topics.backup.restore import restore
from topics.testing import ServerProcess

VICTIMS = ("command", "server", "command", "nobody")
COMMAND_S = 60.0


def start(backups: Path, server: ServerProcess) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "topics", "backup", str(backups), "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def writers_of(loop: KillLoop, number: int) -> list[Writer]:
    return [
        Writer(loop.server, ledger, f"b{number}.{ledger.topic}.{i}", number * 10 + i)
        for ledger in loop.ledgers
        for i in range(2)
    ]


def join(writers: list[Writer]) -> None:
    for writer in writers:
        writer.stopped.set()
        writer.join(COMMAND_S)
        assert writer.broken is None, writer.broken


def test_backups_under_load_are_whole_whatever_is_killed(tmp_path: Path) -> None:
    """BACKUP-5, BACKUP-6: kill -9 of the command and of the server at any moment of a backup."""
    rng, backups = random.Random(3), Backups(tmp_path / "backups")
    settings = {"wal_shards": 2, "segment_max_events": 150, "checkpoint_wal_bytes": 200_000}
    with ServerProcess(data_dir=tmp_path / "data", **settings) as server:
        loop = KillLoop(server, seed=5)
        for number, victim in enumerate(VICTIMS):
            writers = writers_of(loop, number)
            for writer in writers:
                writer.start()
            time.sleep(0.2)
            known = {path: read(path) for path in backups.all()}
            command = start(backups.directory, server)
            time.sleep(rng.uniform(0.3, 1.0))
            if victim == "server":
                server.kill()
                join(writers)
                server.start()
                # It listens elsewhere now, so that the command finds nobody.
                command.kill()
            elif victim == "command":
                command.kill()
            command.communicate(timeout=COMMAND_S)
            join(writers)
            for path, files in known.items():
                assert read(path) == files, "a later backup has changed an earlier one"
        check_last(loop, backups, tmp_path)


def read(path: Path) -> manifest.Manifest | None:
    found = manifest.read(path)
    assert found is not None
    assert list(manifest.damage(path, found.files)) == []
    return found


def check_last(loop: KillLoop, backups: Backups, tmp_path: Path) -> None:
    """A last backup under load, and a server on it."""
    writers = writers_of(loop, len(VICTIMS))
    for writer in writers:
        writer.start()
    time.sleep(0.3)
    before = {ledger.topic: dict(ledger.acked) for ledger in loop.ledgers}
    command = start(backups.directory, loop.server)
    out, err = command.communicate(timeout=COMMAND_S)
    assert command.returncode == 0, err.decode()
    join(writers)
    last = Path(out.decode().partition(": ")[0])
    restore(last, tmp_path / "restored")
    with ServerProcess(data_dir=tmp_path / "restored") as restored:
        again = KillLoop.__new__(KillLoop)
        again.server = restored
        for ledger in loop.ledgers:
            with again._connect() as connection:
                check_topic(connection, ledger, before[ledger.topic])


def check_topic(connection: object, ledger: Ledger, before: dict[int, str]) -> None:
    path, cursor = f"/v0/topics/{ledger.topic}", 0
    records: dict[int, str] = {}
    gaps = []
    while True:
        got = post(connection, f"{path}/diff", {"from_seq": cursor, "limit": 1000})  # type: ignore[arg-type]
        gaps += [got["tombstone"]] * (got["tombstone"] is not None)
        records |= {record["$seq"]: record["data"] for record in got["records"]}
        cursor = got["next_from_seq"]
        if got["caught_up"]:
            break
    missing = [seq for seq, data in before.items() if records.get(seq) != data]
    assert not missing, f"{ledger.topic}: {missing[:5]} were acked before the backup and are not in it"
    doubtful = {data for datas in ledger.doubtful.values() for data in datas}
    strange = [seq for seq, data in records.items() if ledger.acked.get(seq) != data and data not in doubtful]
    assert not strange, f"{ledger.topic}: {strange[:5]} were never written so"
    assert sorted(records) == list(range(1, len(records) + 1)), f"{ledger.topic}: there are holes"
    assert [gap["reason"] for gap in gaps] == ["restore"]
    assert gaps[0]["gap_from"] == len(records) + 1
    answer = post(connection, path, {"records": [{"data": "after"}]})  # type: ignore[arg-type]
    assert answer["seqs"][0] > max(ledger.acked)
