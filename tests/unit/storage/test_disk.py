"""The disks: that the real one does what the protocol says, and that the fake one loses what it may and no more."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from topics.storage.disk import READ_NOW_BYTES_MAX, ZERO_CHUNK_BYTES, Disk, Locked, RealDisk
from topics.testing.fake_disk import Crashed, FakeDisk
from topics.testing.fault_disk import FaultDisk


def disks(tmp_path: Path) -> list[tuple[Disk, str]]:
    fake = FakeDisk()
    fake.make_dir("/x")
    return [(RealDisk(), str(tmp_path)), (fake, "/x")]


def test_what_is_large_is_read_by_a_thread_even_from_memory(tmp_path: Path) -> None:
    """STORE-6: `read_now` is called on the loop."""
    disk = RealDisk()
    handle = disk.create(str(tmp_path / "a"))
    disk.write(handle, 0, bytes(READ_NOW_BYTES_MAX + 1))
    assert disk.read_now(handle, 0, READ_NOW_BYTES_MAX) == bytes(READ_NOW_BYTES_MAX)
    assert disk.read_now(handle, 0, READ_NOW_BYTES_MAX + 1) is None
    disk.close(handle)


def test_both_disks_keep_the_same_protocol(tmp_path: Path) -> None:
    """A sweep on the fake says something about the real one only as far as they agree."""
    for disk, base in disks(tmp_path):
        handle = disk.create(f"{base}/a.tmp")
        with pytest.raises(FileExistsError):
            disk.create(f"{base}/a.tmp")
        disk.allocate(handle, 3000, zero_fill=True)
        assert (disk.size(handle), disk.read(handle, 0, 4000)) == (3000, bytes(3000))
        disk.write(handle, 10, b"hello")
        disk.write(handle, 2998, memoryview(b"world"))
        assert disk.size(handle) == 3003
        assert disk.read(handle, 8, 9) == b"\0\0hello\0\0"
        assert disk.read(handle, 3000, 100) == b"rld"
        assert disk.read_now(handle, 10, 5) == b"hello"
        first = disk.read_now(handle, 10, 5)
        assert disk.read_now(handle, 3000, 100) == b"rld"
        assert first == b"hello", "what was read stays as it is, whatever is read next"
        disk.sync(handle)
        disk.close(handle)
        disk.rename(f"{base}/a.tmp", f"{base}/a")
        disk.sync_dir(base)
        assert disk.list(base) == ["a"]
        assert disk.list(f"{base}/nothing") == []
        assert (disk.exists(f"{base}/a"), disk.exists(f"{base}/a.tmp")) == (True, False)
        read_only = disk.open(f"{base}/a")
        with pytest.raises(OSError, match=r"[Bb]ad|not writable") as caught:
            disk.write(read_only, 0, b"x")
        assert caught.value.errno == errno.EBADF
        disk.close(read_only)
        disk.unlink(f"{base}/a")
        with pytest.raises(FileNotFoundError):
            disk.open(f"{base}/a")
        with pytest.raises(FileNotFoundError):
            disk.unlink(f"{base}/a")
        assert disk.free_bytes(base) > 0
        assert 0 < len(disk.boot_id()) <= 36


def test_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    """STORE-14: the data directory is sensitive."""
    disk = RealDisk()
    disk.make_dir(f"{tmp_path}/d")
    disk.close(disk.create(f"{tmp_path}/d/f"))
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700 & ~umask
    assert (tmp_path / "d/f").stat().st_mode & 0o777 == 0o600 & ~umask


def test_allocate_without_fill_reads_as_zeros(tmp_path: Path) -> None:
    disk = RealDisk()
    handle = disk.create(f"{tmp_path}/a")
    disk.allocate(handle, 1 << 20, zero_fill=False)
    assert disk.read(handle, 0, 1 << 20) == bytes(1 << 20)
    disk.close(handle)


def test_allocate_fills_only_until_it_is_enough(tmp_path: Path) -> None:
    """STORE-10: the file is whole all the same, and reads as zeros."""
    path = tmp_path / "a"
    asked = []

    def enough() -> bool:
        asked.append(path.stat().st_size)
        return len(asked) == 3

    disk = RealDisk()
    handle = disk.create(str(path))
    disk.allocate(handle, 8 * ZERO_CHUNK_BYTES, zero_fill=True, enough=enough)
    assert asked == [8 * ZERO_CHUNK_BYTES] * 3, "it is as long as it will be before it is filled"
    assert disk.read(handle, 0, 9 * ZERO_CHUNK_BYTES) == bytes(8 * ZERO_CHUNK_BYTES)
    disk.close(handle)


def test_second_process_is_refused_with_the_holder_of_the_lock(tmp_path: Path) -> None:
    """STORE-13, with two real processes."""
    disk = RealDisk()
    path = f"{tmp_path}/LOCK"
    held = disk.lock(path)
    script = (
        "import sys\nfrom topics.storage.disk import Locked, RealDisk\n"
        "try:\n    RealDisk().lock(sys.argv[1])\nexcept Locked as locked:\n    print(locked.holder)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True, timeout=30)
    assert json.loads(done.stdout)["pid"] == os.getpid()
    disk.unlock(held)
    disk.unlock(disk.lock(path))


def test_asking_for_the_holder_of_a_lock_takes_and_changes_nothing(tmp_path: Path) -> None:
    disk = RealDisk()
    path = f"{tmp_path}/LOCK"
    assert disk.holder(path) is None
    assert not disk.exists(path)
    held = disk.lock(path)
    for _ in range(2):
        assert json.loads(disk.holder(path) or "")["pid"] == os.getpid()
    disk.unlock(held)
    assert disk.holder(path) is None
    disk.unlock(disk.lock(path))


def test_lock_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    disk = RealDisk()
    held = disk.lock(f"{tmp_path}/LOCK")
    with pytest.raises(Locked, match="pid"):
        disk.lock(f"{tmp_path}/LOCK")
    disk.unlock(held)


def fake_with(data: bytes) -> tuple[FakeDisk, int]:
    disk = FakeDisk()
    disk.make_dir("/x")
    handle = disk.create("/x/a")
    disk.write(handle, 0, data)
    disk.sync(handle)
    disk.sync_dir("/x")
    return disk, handle


def test_kill_loses_nothing_and_keeps_the_boot_id() -> None:
    disk, handle = fake_with(b"synced")
    disk.write(handle, 6, b" and not")
    boot = disk.boot_id()
    disk.crash("kill", random.Random(1))
    assert disk.files() == {"/x/a": b"synced and not"}
    assert disk.boot_id() == boot


def test_dropped_loses_exactly_what_was_not_synced() -> None:
    disk, handle = fake_with(b"synced")
    disk.write(handle, 6, b" and not")
    disk.create("/x/b")
    boot = disk.boot_id()
    disk.crash("dropped", random.Random(1))
    assert disk.files() == {"/x/a": b"synced"}
    assert disk.boot_id() != boot


def test_torn_and_garbled_work_by_sector_and_leave_synced_bytes_alone() -> None:
    seen: set[bytes] = set()
    for seed in range(40):
        disk, handle = fake_with(b"s" * 700)
        disk.write(handle, 700, b"n" * 2000)
        disk.crash("torn" if seed % 2 else "garbled", random.Random(seed))
        content = disk.files()["/x/a"]
        assert content[:700] == b"s" * 700
        for sector in range(1024, len(content), 512):
            part = content[sector : sector + 512]
            assert seed % 2 == 0 or len(set(part[: 2700 - sector])) <= 1
        seen.add(content)
    assert len(seen) > 10


def test_a_rename_survives_a_loss_of_power_only_after_the_directory_is_synced() -> None:
    disk, _ = fake_with(b"old")
    other = disk.create("/x/a.tmp")
    disk.write(other, 0, b"new")
    disk.sync(other)
    disk.rename("/x/a.tmp", "/x/a")
    twin = disk.clone()
    twin.crash("dropped", random.Random(1))
    assert twin.files() == {"/x/a": b"old"}
    disk.sync_dir("/x")
    disk.crash("dropped", random.Random(1))
    assert disk.files() == {"/x/a": b"new"}


def test_an_unlinked_file_comes_back_unless_the_directory_is_synced() -> None:
    disk, _ = fake_with(b"here")
    disk.unlink("/x/a")
    twin = disk.clone()
    twin.crash("dropped", random.Random(1))
    assert twin.files() == {"/x/a": b"here"}
    disk.sync_dir("/x")
    disk.crash("dropped", random.Random(1))
    assert disk.files() == {}


def test_nothing_goes_through_after_the_planned_crash() -> None:
    disk, handle = fake_with(b"")
    disk.crash_at = disk.calls + 1
    with pytest.raises(Crashed):
        disk.write(handle, 0, b"x")
    with pytest.raises(Crashed):
        disk.sync(handle)
    with pytest.raises(Crashed):
        disk.list("/x")
    disk.crash("kill", random.Random(1))
    assert disk.files() == {"/x/a": b"x"}


def test_a_failed_sync_forgets_the_dirty_pages_for_good() -> None:
    """The reason why a shard is poisoned: the next sync says yes, and the bytes are not there."""
    fake, handle = fake_with(b"old")
    disk = FaultDisk(fake)
    disk.write(handle, 0, b"new")
    disk.fail("sync")
    with pytest.raises(OSError, match="planned") as caught:
        disk.sync(handle)
    assert caught.value.errno == errno.EIO
    disk.sync(handle)
    assert disk.read(handle, 0, 3) == b"new"
    fake.crash("dropped", random.Random(1))
    assert fake.files() == {"/x/a": b"old"}


def test_a_short_write_leaves_its_beginning() -> None:
    fake, handle = fake_with(b"......")
    disk = FaultDisk(fake)
    disk.fail("write", 2, errno.ENOSPC, left_bytes=3)
    disk.write(handle, 0, b"a")
    with pytest.raises(OSError, match="planned"):
        disk.write(handle, 1, b"bcdef")
    assert fake.files()["/x/a"] == b"abcd.."


def test_what_is_expected_need_not_be_there(tmp_path: Path) -> None:
    """STORE-1: a hint to the kernel changes nothing, whatever it names."""
    disk = RealDisk()
    (tmp_path / "empty").touch()
    (tmp_path / "some").write_bytes(b"x" * 10_000)
    for name in ("empty", "some"):
        handle = disk.open(str(tmp_path / name))
        for offset, length in ((0, 64), (9_990, 20_000), (20_000, 8)):
            disk.expect(handle, offset, length)
        disk.close(handle)
        disk.expect(handle, 0, 64)
    assert (tmp_path / "some").read_bytes() == b"x" * 10_000
