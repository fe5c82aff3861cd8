"""Why a server does not start, in one line that says what to do about it."""

from __future__ import annotations

import errno
import json
import os
import socket

from topics.settings import Settings
from topics.storage.disk import Locked

_ELSEWHERE = "choose another directory with TOPICS_DATA_DIR or --data-dir"
_ADVICE = {
    errno.ENOSPC: "make room on its file system and start again; nothing is lost",
    errno.EDQUOT: "make room on its file system and start again; nothing is lost",
    errno.EROFS: "its file system is mounted read-only: mount it for writing",
    errno.EIO: "look at the disk, or put the directory back from a copy",
}
_ADDRESS_ADVICE = {
    errno.EADDRINUSE: "something listens there already; stop it, or choose another port with TOPICS_PORT or --port",
    errno.EADDRNOTAVAIL: "this is no address of this machine; set TOPICS_HOST to one that is",
    errno.EACCES: "this user has no permission for that port; choose one from 1024 on with TOPICS_PORT or --port",
}


def cannot_store(settings: Settings, error: Exception) -> str:
    """What is wrong with the data directory."""
    return f"cannot use the data directory {settings.data_dir}: {_storage_reason(error)}"


def _storage_reason(error: Exception) -> str:
    if isinstance(error, Locked):
        return f"{holder_text(error.holder)} serves it; stop that one, or {_ELSEWHERE}"
    if isinstance(error, FileExistsError):
        return f"{error.filename} is a file; {_ELSEWHERE}"
    if isinstance(error, NotADirectoryError):
        return f"a part of the path {error.filename} is a file; {_ELSEWHERE}"
    if isinstance(error, PermissionError):
        return f"this user (uid {os.getuid()}) has no permission for {error.filename}; grant it, or {_ELSEWHERE}"
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror}; {_ADVICE.get(error.errno or 0, _ELSEWHERE)}"
    return str(error)


def holder_text(text: str) -> str:
    """The process that holds a lock, from what it wrote into it."""
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} on {holder['host']} (since {holder['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"


def cannot_listen(settings: Settings, error: OSError) -> str:
    """What is wrong with the address."""
    if isinstance(error, socket.gaierror):
        reason = f"there is no host of this name ({error.strerror}); set TOPICS_HOST to an address of this machine"
    else:
        reason = _ADDRESS_ADVICE.get(error.errno or 0) or error.strerror or str(error)
    return f"cannot listen on {settings.host}:{settings.port}: {reason}"


def cannot_announce(settings: Settings, error: OSError) -> str:
    """What is wrong with the port file."""
    return f"cannot write the port file {settings.port_file}: {error.strerror}; set TOPICS_PORT_FILE to another path"
