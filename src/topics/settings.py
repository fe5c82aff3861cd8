"""Every `TOPICS_*` setting, in one typed and frozen struct.

The struct is its own table: each field carries its default, its unit, what it means and what is allowed, and from that
table come the parser of the environment, the flags of `topics serve` and the reference in the documentation. A field
`max_topics` is the variable `TOPICS_MAX_TOPICS`, the flag `--max-topics` and the limit `max_topics` of an error.

Guarantees:
- A value that is not allowed is refused by name, with the value and what is allowed; all of them at once.
- A variable that is set but empty counts as not set: an empty `TOPICS_HOST` must not mean every interface.
- An unknown `TOPICS_*` variable is reported with the name that was probably meant: a typo must not silently do nothing.
- Keys are not in here. `TOPICS_API_KEYS` is a secret and is read by `topics.server.auth` alone, so that settings may be
  printed and logged.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PREFIX = "TOPICS_"
KEYS_VARIABLE = "TOPICS_API_KEYS"
CLIENT_VARIABLES = frozenset({"TOPICS_URL", "TOPICS_TOKEN", "TOPICS_PROFILE", "TOPICS_PROFILES", "TOPICS_NODE"})
"""Read by the commands that talk to a server."""
INT_MAX = 2**63 - 1
LOG_LEVELS = ("debug", "info", "warning", "error")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_SHOWN_CHARS_MAX = 80
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_HOST_NAME = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|[0-9a-f:]*:[0-9a-f:.]*|\*")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class BadSettings(ValueError):
    """The server's settings are not usable; the message says which and why, one problem per line."""


def _setting(default: T, parse: Callable[[str], T], allowed: str, doc: str) -> T:
    made: T = field(default=default, metadata={"parse": parse, "allowed": allowed, "doc": doc})
    return made


def _whole(default: int, doc: str, *, least: int = 1, most: int = INT_MAX) -> int:
    allowed = f"a whole number from {least} to {most}" if most != INT_MAX else f"a whole number of at least {least}"

    def parse(text: str) -> int:
        # int() also accepts signs, underscores and digits of other scripts, which no operator means.
        if not (text.isascii() and text.isdigit() and len(text) <= 19) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return _setting(default, parse, allowed, doc)


def _cap(default: int, doc: str) -> int:
    return _whole(default, f"{doc} 0 disables the cap.", least=0)


def _switch(default: bool, doc: str) -> bool:
    def parse(text: str) -> bool:
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE

    return _setting(default, parse, "true or false (also 1/0, yes/no, on/off)", doc)


def _choice(default: str, choices: tuple[str, ...], doc: str) -> str:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(text)
        return text.lower()

    return _setting(default, parse, "one of " + ", ".join(choices), doc)


def _host(default: str, doc: str) -> str:
    def parse(text: str) -> str:
        # An IPv6 address is often written as in a URL.
        host = text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text
        if not host or not host.isprintable() or any(char in host for char in " /[]"):
            raise ValueError(text)
        return host

    return _setting(default, parse, "an IP address or a host name", doc)


def _parse_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError(text)
    return Path(text)


def _path(default: str, doc: str) -> Path:
    return _setting(Path(default), _parse_path, "a path", doc)


def _optional_path(doc: str) -> Path | None:
    return _setting(None, _parse_path, "a path", doc)


def _list(parse_item: Callable[[str], str], allowed: str, doc: str) -> tuple[str, ...]:
    def parse(text: str) -> tuple[str, ...]:
        return tuple(parse_item(item.strip().lower()) for item in text.split(","))

    nothing: tuple[str, ...] = ()
    return _setting(nothing, parse, allowed, doc)


def _parse_origin(text: str) -> str:
    matched = _ORIGIN.fullmatch(text)
    if text == "*":
        return text
    if matched is None:
        raise ValueError(text)
    scheme, host, port = matched.groups()
    # A browser leaves the usual port out, so an origin that names it would never match.
    return f"{scheme}://{host}" if port in (None, _DEFAULT_PORTS.get(scheme)) else f"{scheme}://{host}:{port}"


def _parse_host_name(text: str) -> str:
    name = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _HOST_NAME.fullmatch(name) is None:
        raise ValueError(text)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator can choose; `Settings()` is a server on loopback with the documented defaults."""

    host: str = _host("127.0.0.1", "Address to listen on. Anything but loopback needs keys.")
    port: int = _whole(4000, "TCP port to listen on. 0 picks a free one.", least=0, most=65535)
    port_file: Path | None = _optional_path("File into which `host:port` is written once the server listens.")
    log_level: str = _choice("info", LOG_LEVELS, "Least severe log line that is printed.")
    log_format: str = _choice("text", ("text", "json"), "What a log line looks like: text, or one JSON object.")
    access_log: str = _choice(
        "off", ("off", "errors", "all"), "Which requests have a log line: none, those answered with an error, or all."
    )
    trace_context: bool = _switch(
        False, "Keep the `traceparent` header of a write in the meta of its records, where they have none of their own."
    )

    api_keys_file: Path | None = _optional_path(
        "File with keys, one per line, besides those of `TOPICS_API_KEYS`; read again on SIGHUP."
    )
    allow_insecure_no_auth: bool = _switch(False, "Permit a bind beyond loopback without any key.")
    probe_auth: bool = _switch(False, "Require a key on the health and readiness probes too.")
    allowed_hosts: tuple[str, ...] = _list(
        _parse_host_name,
        "host names without a port, joined by commas; `*.` stands for every name below one, `*` for all",
        "Further names in `Host` under which a server without keys is served; loopback names always are.",
    )
    cors_origins: tuple[str, ...] = _list(
        _parse_origin,
        "origins such as `https://app.example.com`, without a path, joined by commas; or `*`, which needs keys",
        "Origins of web pages that may use this server from a browser.",
    )

    max_batch_records: int = _whole(10_000, "Most records in one write.")
    max_record_bytes: int = _whole(1 << 20, "Most bytes of data and meta together in one record.")
    max_body_bytes: int = _whole(64 << 20, "Most bytes in one request body, after decompression too.")
    max_command_bytes: int = _whole(
        1 << 20,
        "Most bytes in the body of a request that writes no records, and of what a write has around its records; "
        "after decompression too.",
    )
    max_meta_bytes: int = _whole(16 << 10, "Most bytes of meta in one record.")
    max_tag_bytes: int = _whole(256, "Most bytes in a tag.")
    max_node_bytes: int = _whole(128, "Most bytes in a node id.")

    max_limit: int = _whole(1000, "Most records in one read; a larger `limit` is clamped.")
    max_claim: int = _whole(1000, "Most jobs in one claim, ack, nack or extend.")
    max_watch_topics: int = _whole(256, "Most topics in one watch session.")

    max_topics: int = _cap(100_000, "Most topics in this instance.")
    max_routers: int = _cap(10_000, "Most routers in this instance.")
    max_watch_sessions: int = _cap(10_000, "Most watch sessions in this instance.")
    max_subscription_bytes: int = _cap(
        256 << 20,
        "Most bytes of memory for watch sessions, about 350 per topic of one, and for the filters of all.",
    )
    max_sse_connections: int = _cap(10_000, "Most open streams (SSE and WebSocket) in this instance.")
    max_sse_connections_per_key: int = _cap(1000, "Most open streams (SSE and WebSocket) of one key.")
    max_inflight_per_key: int = _cap(1000, "Most requests of one key that are answered at the same time.")
    max_total_bytes: int = _cap(0, "Most retained record bytes over all topics.")
    max_buffered_bytes: int = _whole(
        256 << 20,
        "Most bytes of request bodies, answers and stream frames that are held for all clients together. "
        "Leave room for a few bodies of `TOPICS_MAX_BODY_BYTES`.",
    )
    max_producers_per_topic: int = _cap(
        10_000, "Most producers (`producer_id`) of one topic; those that have not written for a week make way."
    )
    max_dedupe_bytes: int = _cap(
        256 << 20, "Most bytes of memory for the idempotency keys and producers of all topics, about 350 each."
    )
    max_connections: int = _cap(20_000, "Most open TCP connections; fewer if the process may not open that many files.")

    session_ttl_ms: int = _whole(300_000, "Milliseconds that a watch session lives without an open stream.")
    buffer_grace_ms: int = _whole(
        5_000, "Milliseconds that a stream may be full before what a cap takes is reported as `from_seq_too_old`."
    )
    slow_consumer_timeout_ms: int = _whole(
        30_000, "Milliseconds after which a stream that its client does not read is closed."
    )

    max_header_bytes: int = _whole(32 << 10, "Most bytes in a request head, request line included.", least=256)
    max_headers: int = _whole(100, "Most header lines in a request.")
    header_timeout_ms: int = _whole(10_000, "Milliseconds from the first byte of a request head to its last.")
    body_timeout_ms: int = _whole(30_000, "Milliseconds that a request body may pause.")
    write_timeout_ms: int = _whole(30_000, "Milliseconds that a client may leave a response unread.")
    idle_timeout_ms: int = _whole(75_000, "Milliseconds that a kept-alive connection may be idle between requests.")
    drain_timeout_ms: int = _whole(10_000, "Milliseconds that a stop waits for requests in flight.", least=0)

    data_dir: Path = _path("./topics-data", "Directory of the log, the hot segments and the snapshots.")
    cold_dir: Path | None = _optional_path("Directory to which older segments are moved; if not set, nothing is moved.")
    wal_shards: int = _whole(1, "Streams into which the write-ahead log is divided.", most=64)
    segment_max_events: int = _whole(10_000, "Records after which a segment is sealed.")
    segment_max_bytes: int = _whole(64 << 20, "Bytes after which a segment is sealed.")
    segment_max_age_ms: int = _whole(3_600_000, "Milliseconds after which a segment is sealed.")
    checkpoint_wal_bytes: int = _whole(
        128 << 20,
        "Bytes of log, and of what routers copied, after which a checkpoint is made; bounds a restart's time.",
    )
    max_unsealed_bytes: int = _cap(
        200 << 20,
        "Most bytes of records in memory that are not sealed yet; from three eighths of it on, sealing hurries.",
    )
    hot_retain_segments: int = _whole(4, "Sealed segments per topic that stay in the data directory.", least=0)
    hot_retain_bytes: int = _cap(0, "Sealed bytes per topic that stay in the data directory.")
    erase_after_ms: int = _whole(
        86_400_000,
        "Milliseconds after which no text of a deleted, evicted or expired record is left in any file.",
        least=10_000,
    )
    min_free_bytes: int = _whole(
        128 << 20,
        "Free bytes on the data directory's disk under which writes are refused, besides twice what is not sealed yet; "
        "never less than a file of the log (64 MiB) for each of its shards, so that the log finds room for its next "
        "file.",
        least=64 << 20,
    )


def table() -> tuple[Field[Any], ...]:
    """Every setting as a dataclass field, in the order in which they are documented."""
    return fields(Settings)


def variable(setting: Field[Any]) -> str:
    """The environment variable of `setting`."""
    return PREFIX + setting.name.upper()


def flag(setting: Field[Any]) -> str:
    """The command-line flag of `setting`."""
    return "--" + setting.name.replace("_", "-")


def read(environ: Mapping[str, str], flags: Mapping[str, str] | None = None) -> tuple[Settings, list[str]]:
    """The settings of `environ`, over them those of `flags` (by field name), and a warning per unknown variable.

    Raises `BadSettings` with a line for every value that is not allowed.
    """
    flags = flags or {}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for setting in table():
        if setting.name in flags:
            source, text = flag(setting), flags[setting.name]
        else:
            source, text = variable(setting), environ.get(variable(setting), "").strip()
            if not text:
                continue
        try:
            values[setting.name] = setting.metadata["parse"](text)
        except ValueError:
            problems.append(f"{source} is {_shown(text)}, but must be {setting.metadata['allowed']}")
    if problems:
        raise BadSettings("\n".join(problems))
    return Settings(**values), _unknown_variables(environ)


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = {variable(setting) for setting in table()} | {KEYS_VARIABLE} | CLIENT_VARIABLES
    warnings = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            warnings.append(f"{name} is not a setting of this server and does nothing{hint}")
    return warnings


def _shown(text: str) -> str:
    cut = text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
    return repr(cut)
