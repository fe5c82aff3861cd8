"""The options of the data source, parsed once into typed values; a bad one is refused by name and value.

Spark passes options on as text with case-insensitive names. The key never appears in a message or in a `repr`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from topics.errors import TopicsError
from topics.names import check_topic_name
from topics.spark.errors import BadOption, SourceError
from topics.spark.offsets import WantedOffsets
from topics.spark.prune import Prune

TOKEN_VARIABLE: Final = "TOPICS_TOKEN"  # noqa: S105 - the variable's name
RETRY_TIMEOUT_MS: Final = 30_000
COLUMNS: Final = ("topic", "seq", "ts", "node", "tag", "meta", "data")
TOMBSTONE: Final = "tombstone"

NAME_LIKENESS: Final = 0.85
TOPIC_OPTIONS: Final = ("topic", "topics", "topicPrefix", "subscribePattern")
_NO_PUSH_DOWN: Final = (
    'option "pushFilters" is "true": filters cannot be pushed down, because Spark keeps what one query pushed and the '
    "next query over the same DataFrame would read too few rows; leave it out, and bound the read by "
    '"startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "tags" or "nodes"'
)

_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no")

READ_OPTIONS: Final = (
    "url", "token", "topic", "topics", "topicPrefix", "subscribePattern", "tags", "nodes", "startingOffsets",
    "endingOffsets", "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "minPartitions",
    "failOnDataLoss", "includeTombstones", "columns", "dataDir", "coldDir", "retryTimeoutMs", "pushFilters",
    "pauseFile",
)  # fmt: skip
WRITE_OPTIONS: Final = (
    "url", "token", "topic", "errorTopic", "stagingDir", "txnId", "txnVersion", "recordsPerSecond", "retryTimeoutMs",
    "checkpointLocation",
)  # fmt: skip


ONLY_WRITES: Final = ("errorTopic", "stagingDir", "txnId", "txnVersion", "recordsPerSecond")
"""What a write takes and a read would pass over: somebody who sets one expects something of it."""


class GivenOptions:
    """Typed access to the options that Spark passes on as text."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def check_names(self, known: tuple[str, ...]) -> None:
        """Refuse what looks like a misspelt option of ours; others may be meant for Spark, and are ignored."""
        by_lower = {name.lower(): name for name in known}
        for given in sorted(set(self._given) - set(by_lower)):
            for meant in difflib.get_close_matches(given, by_lower, 1, NAME_LIKENESS):
                raise SourceError(f'there is no option "{given}" here; did you mean "{by_lower[meant]}"?')

    def text(self, name: str) -> str | None:
        """An option as text, or None where it is missing or empty."""
        value = self._given.get(name.lower())
        return None if value is None or not str(value).strip() else str(value).strip()

    def flag(self, name: str, default: bool) -> bool:
        """An option that is true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise BadOption(name, value, "it must be true or false")

    def number(self, name: str, least: int) -> int | None:
        """An option that is a whole number of at least `least`."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 19) or int(value) < least:
            raise BadOption(name, value, f"it must be a whole number of at least {least}")
        return int(value)

    def names(self, name: str) -> list[str]:
        """An option that is a comma-separated list."""
        return [part.strip() for part in (self.text(name) or "").split(",") if part.strip()]

    def texts(self, name: str) -> tuple[str, ...]:
        """An option that is a comma-separated list, or a JSON array of texts that may hold commas."""
        value = self.text(name) or ""
        if not value.startswith("["):
            return tuple(self.names(name))
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
            raise BadOption(name, value, 'it must be a list such as "a,b", or a JSON array of texts')
        return tuple(found)


class Address:
    """The address of a server, and the key for it."""

    def __init__(self, url: str, token: str | None, retry_timeout_ms: int | None) -> None:
        parts = urlsplit(url)
        if parts.username or parts.password:
            # The value is not repeated: it holds a password.
            raise SourceError('the option "url" holds a user or password; give the key in the option "token"')
        try:
            port = parts.port
        except ValueError:
            raise BadOption("url", url, "its port is not a number from 1 to 65535") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadOption("url", url, 'it must be an address such as "http://127.0.0.1:4000"')
        self.url = url.rstrip("/")
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port or (443 if self.tls else 80)
        self.path = parts.path.rstrip("/")
        self.token = token
        self.retry_timeout_ms = retry_timeout_ms
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise SourceError('the option "token" holds characters that a key cannot have')

    def __repr__(self) -> str:
        return f"Address({self.url})"


def addresses(options: GivenOptions) -> tuple[Address, ...]:
    """The servers that `url` lists, with the keys that `token` lists: one for all of them, or one for each."""
    urls = options.names("url")
    if not urls:
        raise SourceError(
            'the option "url" is missing: name the server, such as "http://127.0.0.1:4000"; in SQL, CREATE TABLE '
            "keeps options only if it names no columns, and INSERT and CREATE TABLE ... AS SELECT pass none on: "
            "write with DataFrame.write"
        )
    given = options.text("token") or os.environ.get(TOKEN_VARIABLE)
    parts = [given or ""] if len(urls) == 1 else (given or "").split(",")
    tokens = [part.strip() or None for part in parts]
    if len(tokens) == 1:
        tokens *= len(urls)
    if len(tokens) != len(urls):
        raise SourceError(
            f'the option "token" lists {len(tokens)} keys for {len(urls)} servers: give one for all, or each'
        )
    retry_timeout_ms = options.number("retryTimeoutMs", 0)
    found = tuple(Address(url, token, retry_timeout_ms) for url, token in zip(urls, tokens, strict=True))
    if len({address.url for address in found}) < len(found):
        raise BadOption("url", options.text("url"), "it names a server twice")
    return found


class Topics:
    """Which topics to read: one, a list, all with a prefix, or all whose whole name matches a pattern."""

    def __init__(self, options: GivenOptions) -> None:
        given = [name for name in TOPIC_OPTIONS if options.text(name) is not None]
        if len(given) != 1:
            found = "none of them is set" if not given else " and ".join(f'"{name}"' for name in given) + " are set"
            raise SourceError(f"set exactly one of the options {_listed(TOPIC_OPTIONS)}; {found}")
        self.option = given[0]
        self.value = options.text(given[0]) or ""
        self.prefix = {"topicPrefix": self.value, "subscribePattern": ""}.get(self.option)
        """All topics to read have it; None where they are named one by one."""
        self._pattern = _pattern(self.option, self.value) if self.option == "subscribePattern" else None
        names = [self.value] if self.option == "topic" else options.names("topics")
        self.names = [] if self.prefix is not None else sorted(set(names))
        for name in self.names:
            check_name(self.option, name)

    def covers(self, topic: str) -> bool:
        """Whether a topic is among those to read."""
        if self._pattern is not None:
            return self._pattern.fullmatch(topic) is not None
        return topic in self.names if self.prefix is None else topic.startswith(self.prefix)


class ReadOptions:
    """The options of a read."""

    def __init__(self, given: Mapping[str, str], streaming: bool) -> None:
        options = GivenOptions(given)
        options.check_names(READ_OPTIONS)
        for name in ONLY_WRITES:
            if options.text(name) is not None:
                raise BadOption(name, options.text(name), "it is an option of writes, and a read has no use for it")
        self.addresses = addresses(options)
        self.topics = Topics(options)
        self.starting = WantedOffsets("startingOffsets", options.text("startingOffsets") or "earliest")
        self.ending = WantedOffsets("endingOffsets", options.text("endingOffsets") or "latest")
        self.starting_ts = options.number("startingTimestamp", 0)
        self.ending_ts = options.number("endingTimestamp", 0)
        if self.starting_ts is not None and self.ending_ts is not None and self.starting_ts > self.ending_ts:
            raise BadOption("endingTimestamp", self.ending_ts, f"it is before startingTimestamp, {self.starting_ts}")
        self.offsets_max = options.number("maxOffsetsPerTrigger", 1)
        self.partitions_min = options.number("minPartitions", 1) or 1
        self.fail_on_data_loss = options.flag("failOnDataLoss", True)
        self.include_tombstones = options.flag("includeTombstones", False)
        self.prune = Prune(options.texts("tags"), options.texts("nodes"))
        if options.flag("pushFilters", False):
            raise SourceError(_NO_PUSH_DOWN)
        self.pause_file = options.text("pauseFile")
        self.data_dir = _directory(options, "dataDir")
        self.cold_dir = _directory(options, "coldDir")
        self.columns = _columns(options, self.include_tombstones)
        for offsets, timestamp in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
            if options.text(offsets) is not None and options.text(timestamp) is not None:
                raise SourceError(f'set "{offsets}" or "{timestamp}", not both')
            if streaming and offsets == "endingOffsets":
                for name in (offsets, timestamp):
                    if options.text(name) is not None:
                        raise BadOption(name, options.text(name), "a stream has no end; leave it out")


def _pattern(option: str, value: str) -> re.Pattern[str]:
    try:
        return re.compile(value)
    except re.error as error:
        raise BadOption(option, value, f"it is not a regular expression: {error}") from None


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names[:-1]) + f' and "{names[-1]}"'


def _directory(options: GivenOptions, name: str) -> Path | None:
    value = options.text(name)
    return None if value is None else Path(value.removeprefix("file://"))


def _columns(options: GivenOptions, include_tombstones: bool) -> tuple[str, ...]:
    known = (*COLUMNS, TOMBSTONE) if include_tombstones else COLUMNS
    chosen = options.names("columns")
    for name in chosen:
        if name not in known:
            hint = ' (set "includeTombstones" for it)' if name == TOMBSTONE else ""
            raise BadOption(
                "columns", options.text("columns"), f'there is no column "{name}"{hint}; there are {", ".join(known)}'
            )
    if len(set(chosen)) < len(chosen):
        raise BadOption("columns", options.text("columns"), "it names a column twice")
    if not chosen:
        return known
    if include_tombstones and TOMBSTONE not in chosen:
        chosen.append(TOMBSTONE)
    return tuple(chosen)


def check_name(option: str, name: str) -> None:
    """Refuse what is not the name of a topic."""
    try:
        check_topic_name(name)
    except TopicsError as error:
        raise BadOption(option, name, error.message) from None


class WriteOptions:
    """The options of a write."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = GivenOptions(given)
        options.check_names(WRITE_OPTIONS)
        self.address, *others = addresses(options)
        if others:
            raise BadOption("url", options.text("url"), "records are written to one server: name one")
        self.topic = options.text("topic")
        self.error_topic = options.text("errorTopic")
        for option, name in (("topic", self.topic), ("errorTopic", self.error_topic)):
            if name is not None:
                check_name(option, name)
        self.txn_id = options.text("txnId")
        self.txn_version = options.number("txnVersion", 0) or 0
        self.records_per_second = options.number("recordsPerSecond", 1)
        self.staging = options.text("stagingDir")
        self.checkpoint = options.text("checkpointLocation")
        if self.txn_id is not None and self.staging is None:
            raise SourceError(
                f'option "txnId" is "{self.txn_id}", and "stagingDir" is not set: name a directory that outlives this '
                f"write, because a repeated one looks there for what the first had staged"
            )
