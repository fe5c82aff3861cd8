"""What a machine is like for a server: its data directory and disk, its clock, its limits.

Everything is only looked at, but for a small file in the data directory that is synced a few times to see how long that
takes, and removed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from topics.commands.finding import Finding, bad, note, ok
from topics.commands.spans import shown_size
from topics.settings import BadSettings, Settings, read

SYNCS: Final = 40
SYNC_BYTES: Final = 4096
SYNC_BUDGET_S: Final = 3.0
SLOW_MS: Final = 20.0
TOO_FAST_MS: Final = 0.02
"""No disk that keeps its word is faster than this."""
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})
FILES_MIN: Final = 4_096
CLOCK_UNSYNCED: Final = 5


def look_at(environ: dict[str, str], data_dir: Path | None) -> Iterator[Finding]:
    """Everything about this machine, for a server with the settings of the environment."""
    try:
        settings, warnings = read({name: value for name, value in environ.items() if name != "TOPICS_API_KEYS"})
    except BadSettings as error:
        yield bad("settings", "; ".join(str(error).splitlines()), "correct them, or the server does not start")
        settings, warnings = Settings(), []
    else:
        yield ok("settings", "those of the environment are valid")
    for warning in warnings:
        yield note("settings", warning, "correct the name, or remove it")
    directory = (data_dir or settings.data_dir).absolute()
    guessed = data_dir is None and not environ.get("TOPICS_DATA_DIR")
    yield from _disk(directory, settings.min_free_bytes, guessed=guessed)
    yield _clock()
    yield _open_files(settings)
    yield _memory(settings)


def _disk(directory: Path, min_free_bytes: int, *, guessed: bool) -> Iterator[Finding]:
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        advice = "let the server's user own it, or name another with --data-dir or TOPICS_DATA_DIR"
        yield bad("data", f"{existing} cannot be written to by this user", advice)
        return
    made = "" if existing == directory else ", which is made at the first start"
    if guessed and made:
        advice = "name the server's with --data-dir; the systemd service has its own in /var/lib/topics"
        yield note("data", f"{directory}{made}; a server that runs already has another one", advice)
    else:
        yield ok("data", f"{directory}{made}")
    usage = shutil.disk_usage(existing)
    free = f"{shown_size(usage.free)} of {shown_size(usage.total)} are free"
    if usage.free < min_free_bytes:
        advice = "free some: below TOPICS_MIN_FREE_BYTES every write is refused"
        yield bad("space", f"{free}, less than the {shown_size(min_free_bytes)} that writes need", advice)
    elif usage.free < 3 * min_free_bytes:
        yield note("space", free, f"free some soon: at {shown_size(min_free_bytes)} writes are refused")
    else:
        yield ok("space", free)
    kind = file_system(existing, _mounts())
    if kind in VOLATILE:
        yield bad(
            "disk", f"{existing} is in memory ({kind})", "put the data directory onto a disk: a reboot empties it"
        )
        return
    if kind in REMOTE:
        advice = "use a local disk: a sync over the network may be slow, or may not be one"
        yield note("disk", f"{existing} is on a network ({kind})", advice)
    yield sync_finding(sync_times_ms(existing), kind)


def _mounts() -> list[tuple[str, str]]:
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [(each[1].replace("\\040", " "), each[2]) for each in fields if len(each) > 2]


def file_system(path: Path, mounts: list[tuple[str, str]]) -> str:
    """The kind of file system that a path is on, of those that are mounted."""
    real = str(path.resolve())
    inside = [(where, kind) for where, kind in mounts if real == where or real.startswith(where.rstrip("/") + "/")]
    # Of two at the same place, the later one is seen.
    return max(enumerate(inside), key=lambda each: (len(each[1][0]), each[0]))[1][1] if inside else "unknown"


def sync_times_ms(directory: Path) -> list[float]:
    """How long it takes to add a little to a file so that it survives a loss of power."""
    took: list[float] = []
    until = time.monotonic() + SYNC_BUDGET_S
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".topics-doctor-") as file:
        while len(took) < SYNCS and time.monotonic() < until:
            began = time.perf_counter()
            os.write(file.fileno(), bytes(SYNC_BYTES))
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return took


def sync_finding(took_ms: list[float], kind: str) -> Finding:
    """What those times mean."""
    middle, most = statistics.median(took_ms), max(took_ms)
    found = f"a sync takes {middle:.2f} ms, {most:.2f} at worst ({kind})"
    if middle > SLOW_MS:
        advice = "use a faster disk, or one of its own: each write of the class fsync waits for one"
        return note("disk", found, advice)
    if middle < TOO_FAST_MS:
        return note("disk", found, "no disk is that fast: it may acknowledge what a loss of power takes")
    return ok("disk", found)


def _clock() -> Finding:
    """Whether the kernel's clock is kept by a time service."""
    try:
        # The state is what the call returns; what it writes is not looked at, and has room in any case.
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(1024))
    except (OSError, AttributeError):
        state = -1
    now = time.strftime("%Y-%m-%d %H:%M:%S %z")
    if state == CLOCK_UNSYNCED:
        advice = "run chrony or systemd-timesyncd: times and TTLs follow this clock"
        return note("clock", f"{now}, and no time service keeps it", advice)
    return ok("clock", f"{now}, kept by a time service" if state >= 0 else f"{now}; what keeps it is not known")


def _open_files(settings: Settings) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return ok("files", "this process may open any number")
    # The server raises its own limit up to the hard one.
    from topics.server.descriptors import reserved
    from topics.server.server import BACKLOG

    aside = reserved(settings, BACKLOG)
    room = hard - aside
    found = f"a server of this shell may open {hard:,}: {aside:,} for its own, {max(room, 0):,} for connections"
    if settings.max_connections and room < settings.max_connections:
        advice = f"raise it for TOPICS_MAX_CONNECTIONS={settings.max_connections}: ulimit -n, LimitNOFILE= in systemd"
        return (bad if hard < FILES_MIN else note)("files", found, advice)
    return ok("files", found)


def _memory(settings: Settings) -> Finding:
    """Whether what a server holds at its bounds fits."""
    wanted = settings.max_unsealed_bytes + settings.max_buffered_bytes
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _control_group_bytes()
    total = total if limit is None else min(total, limit)
    found = f"{shown_size(total)}, {os.cpu_count()} cores"
    if wanted * 2 > total:
        advice = "lower TOPICS_MAX_UNSEALED_BYTES and TOPICS_MAX_BUFFERED_BYTES, or give it more"
        return note("memory", f"{found}; a server may hold {shown_size(wanted)} beside what is sealed", advice)
    return ok("memory", found)


def _control_group_bytes() -> int | None:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
