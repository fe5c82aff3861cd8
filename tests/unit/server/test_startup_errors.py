"""A server that does not start says why, and what to do about it."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from topics.server import startup_errors
from topics.settings import Settings
from topics.storage.damage import UnknownFormat
from topics.storage.disk import Locked, RealDisk

SETTINGS = Settings(data_dir=Path("data"), port_file=Path("port"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "data/LOCK"), "no permission for data/LOCK; grant it, or"),
        (
            OSError(errno.EROFS, "Read-only file system", "data"),
            "data: Read-only file system; its file system is mounted read-only",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "data: No space left on device; make room on its file system",
        ),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "data"), "a part of the path data is a file"),
        (Locked("data/LOCK", ""), "another process serves it; stop that one, or choose another"),
        (Locked("data/LOCK", '{"pid":7,"host":"h","since":"s"}'), "process 7 on h (since s) serves it; stop that one"),
        (UnknownFormat("version 9; this program reads version 1"), "version 9; this program reads version 1"),
    ],
)
def test_data_directory(error: Exception, expected: str) -> None:
    """One line with the reason and the way out."""
    assert expected in startup_errors.cannot_store(SETTINGS, error)
    assert startup_errors.cannot_store(SETTINGS, error).startswith("cannot use the data directory data: ")


def test_data_directory_that_is_a_file(tmp_path: Path) -> None:
    """As the operating system tells it."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as failed:  # noqa: PT011
        RealDisk().make_dir(str(tmp_path / "file"))
    assert f"{tmp_path}/file is a file; choose another" in startup_errors.cannot_store(SETTINGS, failed.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "something listens there already; stop it, or choose another port"),
        (OSError(errno.EADDRNOTAVAIL, "not here"), "no address of this machine; set TOPICS_HOST to one that is"),
        (OSError(errno.EACCES, "denied"), "choose one from 1024 on with TOPICS_PORT or --port"),
        (socket.gaierror(-2, "Name or service not known"), "no host of this name (Name or service not known)"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    ],
)
def test_address(error: OSError, expected: str) -> None:
    """One line with the reason and the way out."""
    assert expected in startup_errors.cannot_listen(SETTINGS, error)
    assert startup_errors.cannot_listen(SETTINGS, error).startswith("cannot listen on 127.0.0.1:4000: ")
