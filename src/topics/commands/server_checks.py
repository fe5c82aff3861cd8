"""What a server says about its own health, judged by the alarms of docs/operations.md."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from topics import __version__
from topics.client.client import Client
from topics.client.errors import Unreachable
from topics.commands.finding import Finding, bad, note, ok
from topics.commands.link import Link
from topics.commands.spans import shown_size, shown_span
from topics.commands.table import counted
from topics.errors import Forbidden, TopicsError

SLOW_SYNC_MS: Final = 20.0
SKEW_S_MAX: Final = 2.0
FILES_SHARE_MAX: Final = 0.8


def look_at(link: Link) -> Iterator[Finding]:
    """Everything about the server; where none is reached, only that."""
    client = link.now
    try:
        health = client.health()
    except Unreachable as error:
        yield bad("server", error.message, "start it with `topics serve`, or name it with --url, --profile, TOPICS_URL")
        return
    except TopicsError as error:
        yield bad("server", f"{link.url}: {error.message}", "check the address: something else may answer there")
        return
    yield ok("server", f"{link.url}, up {shown_span(health.uptime_ms)}")
    if health.version == __version__:
        yield ok("version", f"{health.version}, as this command")
    else:
        advice = "use the command of the same version, if something is missing"
        yield note("version", f"the server is {health.version}, this command {__version__}", advice)
    yield _ready(client)
    yield _key(link)
    asked_s = time.time()
    try:
        metrics = client.metrics()
    except Forbidden:
        yield note("metrics", "the key may not read metrics", "use a key with the scope read and no prefix")
        return
    except TopicsError:
        return
    yield from of_metrics(metrics)
    yield from clock_finding(metrics, asked_s, time.time())


def _ready(client: Client) -> Finding:
    try:
        found = client.ready()
    except TopicsError as error:
        advice = "wait, if it starts; after a failed disk repair that and restart it"
        return bad("ready", f"{error.message} ({error.status} {error.code})", advice)
    return ok("ready", f"it serves {counted(found.topics, 'topic')}")


def _key(link: Link) -> Finding:
    try:
        identity = link.now.whoami()
    except TopicsError as error:
        advice = "put the right key into TOPICS_TOKEN, a file (--token-file) or a profile"
        return bad("key", f"{error.message} ({error.status} {error.code})", advice)
    may = ", ".join(identity.scopes)
    if not link.has_key:
        return ok("key", f"none is needed: whoever reaches the server may {may}")
    only = f" below {', '.join(identity.prefixes)}" if identity.prefixes else ""
    return ok("key", f"it may {may}{only}")


def of_metrics(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    """What the metrics of a server say."""
    if metrics.get("topics_wal_read_only"):
        yield bad("log", "a write or a sync has failed: nothing is stored any more", "repair the disk, then restart")
    else:
        yield ok("log", f"{counted(int(metrics.get('topics_wal_fsyncs_total', 0)), 'sync')} so far, none has failed")
    if metrics.get("topics_disk_full"):
        free = shown_size(metrics.get("topics_disk_free_bytes", 0))
        advice = "delete records or topics, or make room in another way: writes then work again without a restart"
        yield bad("space", f"its disk has {free} left, and writes are refused", advice)
    damaged = int(metrics.get("topics_corruption_total", 0))
    if damaged:
        advice = "readers get tombstones for what is lost; look into quarantine/, and run `topics verify` on a copy"
        yield bad("damage", f"{counted(damaged, 'damaged place')} found in the data directory", advice)
    yield from _syncs(metrics)
    level = int(metrics.get("topics_pressure_level", 0))
    if level == 0:
        yield ok("pressure", "none: it keeps up")
    else:
        advice = "write less at a time, add readers, or use a faster disk; docs/operations.md#what-to-monitor"
        yield (bad if level >= 4 else note)("pressure", f"level {level} of 4", advice)
    refused = metrics.get("topics_buffered_refused_total", 0)
    if refused:
        advice = "clients leave answers unread or send too much at once: fix them, or raise TOPICS_MAX_BUFFERED_BYTES"
        yield note("clients", f"{refused:,.0f} requests or clients were cut off for what they hold", advice)
    full = metrics.get("topics_wal_submit_full_total", 0)
    if full:
        advice = "the disk is slower than the writers: use a faster one, or TOPICS_WAL_SHARDS on several"
        yield note("writers", f"{full:,.0f} writes were refused because the log was full", advice)
    yield ok("memory", f"{shown_size(metrics.get('topics_unsealed_bytes', 0))} of records wait for their segments")
    yield from _open_files(metrics)


def _open_files(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    """How near the server is to the limit that it was started with, as TopicsFilesRunOut judges it."""
    opened, most = int(metrics.get("process_open_fds", 0)), int(metrics.get("process_max_fds", 0))
    if most <= 0:
        return
    found = f"{opened:,} files and sockets are open, of {most:,} that it may have"
    if opened > FILES_SHARE_MAX * most:
        yield note("files", found, "raise the limit (LimitNOFILE=), or lower TOPICS_MAX_CONNECTIONS")
    else:
        yield ok("files", found)


def clock_finding(metrics: Mapping[str, Any], asked_s: float, answered_s: float) -> Iterator[Finding]:
    """How far the server's clock is from ours, which has read these times before and after the answer."""
    if "topics_time_seconds" not in metrics:
        return
    server_s = float(metrics["topics_time_seconds"])
    ahead_s = server_s - min(max(server_s, asked_s), answered_s)
    if abs(ahead_s) <= SKEW_S_MAX:
        yield ok("time", "its clock agrees with the one here")
    else:
        way = "ahead of" if ahead_s > 0 else "behind"
        found = f"its clock is {shown_span(int(abs(ahead_s) * 1000))} {way} the one here"
        yield note("time", found, "set the wrong one: `$ts`, TTLs and `deliver_at` follow the server's")


def _syncs(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    """How long the server's own syncs take, by its histogram."""
    buckets = metrics.get("topics_wal_fsync_latency_us_bucket", {})
    count = buckets.get("+Inf", 0)
    if not count:
        return
    slow_us = next(
        (float(bound) for bound, below in buckets.items() if bound != "+Inf" and below >= 0.99 * count), float("inf")
    )
    found = f"99 of 100 syncs take less than {slow_us / 1000:g} ms" if slow_us < float("inf") else "syncs take seconds"
    if slow_us / 1000 <= SLOW_SYNC_MS:
        yield ok("syncs", found)
    else:
        yield note("syncs", found, "each fsync write waits this long: use a faster disk, or one of its own")
