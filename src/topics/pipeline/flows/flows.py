"""Flows: what a file of pipelines asks for, ready to be started.

`read` holds a file against `schema`, resolves paths against the directory of the file, finds each server and its key,
and refuses what could not run: two flows with one state, SQL that is not there, a topic name that no topic can have. It
asks no server and starts no Spark, so that a file can be checked anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from topics.commands.failures import CommandError
from topics.commands.link import Target, target
from topics.errors import TopicsError
from topics.names import check_topic_name
from topics.pipeline.flows.schema import (
    ArchiveKeys,
    FileKeys,
    RestartKeys,
    ServerKeys,
    SparkKeys,
    TransformKeys,
    checked,
    span_ms,
)
from topics.pipeline.flows.secrets import Secrets
from topics.pipeline.flows.yaml_file import Where, YamlFile, dotted
from topics.pipeline.lake.formats import refusal, unsuitable
from topics.pipeline.query import state_of
from topics.spark.place import BadPlace, Place

FLOWS_MAX: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_KINDS: Final = {"archive": ArchiveKeys, "transform": TransformKeys}
_SPAN_MAX_MS: Final = 86_400_000


@dataclass(frozen=True)
class Flow:
    """One archive or transform. `make` makes the pipeline, anew for each start."""

    name: str
    kind: str
    server: Target
    topics: tuple[str, ...]
    prefix: str | None
    interval: str
    checkpoint: Path | None
    """Where its state is; None where that is only in its tables."""
    make: Callable[[], Any]
    refused: Callable[[], str | None] = lambda: None
    """Looks at the place of the flow, and says why it cannot run there."""

    @property
    def topic(self) -> str:
        """What it reads, in a few words."""
        if self.prefix is not None:
            return f"{self.prefix}*"
        return ", ".join(self.topics)


@dataclass(frozen=True)
class Restart:
    """How long a flow waits after a failure, in milliseconds."""

    first_ms: int = 1_000
    most_ms: int = 300_000
    calm_ms: int = 60_000


@dataclass(frozen=True)
class Flows:
    """Everything that a file asks for."""

    server: Target
    master: str
    conf: dict[str, str]
    restart: Restart
    flows: list[Flow]


def read(file: Path, environ: Mapping[str, str], secrets: Secrets) -> Flows:
    """What a file asks for; raises PipelineError with a line for each problem."""
    document = YamlFile(file, environ, secrets)
    return _Reader(document, environ, secrets).read()


class _Reader:
    def __init__(self, document: YamlFile, environ: Mapping[str, str], secrets: Secrets) -> None:
        self._document = document
        self._environ = environ
        self._secrets = secrets
        self._states: dict[str, str] = {}

    def read(self) -> Flows:
        document = self._document
        keys = checked(document, (), document.value, FileKeys)
        if keys is None:
            document.raise_problems()
        assert keys is not None, "what is wrong with the file is a problem"
        server = self._server(("server",), keys.server or {}, None)
        spark = checked(document, ("spark",), keys.spark or {}, SparkKeys) or SparkKeys()
        restart = self._restart(keys.restart or {})
        if len(keys.flows) > FLOWS_MAX:
            document.problem(("flows",), f"flows has {len(keys.flows)} flows; one application runs at most {FLOWS_MAX}")
        flows = [self._flow(name, value, server) for name, value in keys.flows.items()]
        document.raise_problems()
        assert server is not None, "what is wrong with a server is a problem"
        conf = {name: _conf(value) for name, value in spark.conf.items()}
        return Flows(server, spark.master, conf, restart, [flow for flow in flows if flow is not None])

    def _server(self, path: Where, value: Any, otherwise: Target | None) -> Target | None:
        document = self._document
        keys = checked(document, path, value, ServerKeys, hides=("token",))
        if keys is None:
            return None
        if keys.token is not None and not document.from_environment((*path, "token")):
            text = "a key does not belong into a file; name a variable of the environment, as in ${TOPICS_TOKEN}"
            document.problem((*path, "token"), f"{dotted((*path, 'token'))}: {text}, or use token_file")
            return None
        token_file = None if keys.token_file is None else self._path(keys.token_file)
        try:
            found = target(keys.url, keys.profile, token_file, self._environ)
        except CommandError as error:
            document.problem(path, f"{dotted(path)}: {error}")
            return None
        if found.ca is not None:
            text = "has a ca, which pipelines do not take: trust it on the whole machine"
            document.problem(path, f"{dotted(path)}: the profile of {found.url} {text}")
        token = found.token if keys.token is None else keys.token
        if otherwise is not None and keys.url is None and keys.profile is None:
            found = otherwise._replace(token=token if keys.token or keys.token_file else otherwise.token)
        else:
            found = found._replace(token=token)
        self._secrets.add("the key of the server", found.token)
        return found

    def _restart(self, value: Any) -> Restart:
        document = self._document
        keys = checked(document, ("restart",), value, RestartKeys)
        if keys is None:
            return Restart()
        found = Restart(*map(span_ms, (keys.first, keys.most, keys.calm)))
        for name, span in (("first", found.first_ms), ("most", found.most_ms), ("calm", found.calm_ms)):
            if not 1 <= span <= _SPAN_MAX_MS:
                path = ("restart", name)
                document.problem(path, f"{dotted(path)} is {span:,} ms; it must be more than nothing and at most a day")
        if found.most_ms < found.first_ms:
            document.problem(("restart", "most"), "restart.most is less than restart.first")
        return found

    def _flow(self, name: str, value: Any, server: Target | None) -> Flow | None:
        document = self._document
        path: Where = ("flows", name)
        if _NAME.fullmatch(name) is None:
            document.problem(path, f'flows: "{name[:100]}" is no name: up to 100 letters, digits, and any of . _ : -')
        kind = value.get("kind") if isinstance(value, dict) else None
        shape = _KINDS.get(kind) if isinstance(kind, str) else None
        if isinstance(value, dict) and shape is None:
            shown = "missing" if "kind" not in value else document.shown((*path, "kind"), kind)
            document.problem((*path, "kind"), f"{dotted((*path, 'kind'))} is {shown}; it must be archive or transform")
            return None
        keys: Any = checked(document, path, value, shape or ArchiveKeys)
        if keys is None:
            return None
        own = server if keys.server is None else self._server((*path, "server"), keys.server, server)
        if own is None:
            return None
        make = self._archive if isinstance(keys, ArchiveKeys) else self._transform
        return make(name, path, keys, own)

    def _archive(self, name: str, path: Where, keys: ArchiveKeys, server: Target) -> Flow | None:
        document = self._document
        topics = self._topics((*path, "topics"), keys.topics)
        if (keys.topics is None) == (keys.prefix is None):
            document.problem(path, f"{dotted(path)}: say what to archive, with topics or with prefix")
        try:
            root = Place(keys.to if "://" in keys.to else self._path(keys.to))
        except BadPlace as error:
            document.problem((*path, "to"), f"{dotted((*path, 'to'))}: {error}")
            return None
        changes = {"typed": keys.typed, "follow_deletes": keys.follow_deletes}
        for key, why in unsuitable(keys.format, root, keys.catalog, changes):
            document.problem((*path, key), f"{dotted((*path, key))} {why}")
        checkpoint = None if keys.checkpoint is None else self._path(keys.checkpoint)
        state = state_of(root, checkpoint)
        self._own_state(name, path, str(state or root))

        def make() -> Any:
            from topics.pipeline.archive import Archive

            chosen = {"topics": ",".join(topics)} if keys.prefix is None else {"topicPrefix": keys.prefix}
            return Archive(
                {**source_of(server), **chosen}, root, keys.format, checkpoint, keys.target_file_bytes,
                keys.max_offsets, keys.min_partitions, keys.typed, keys.follow_deletes, keys.catalog, keys.namespace,
            )  # fmt: skip

        def refused() -> str | None:
            return refusal(keys.format, root, keys.catalog, {})

        return Flow(name, "archive", server, topics, keys.prefix, keys.interval, state, make, refused)

    def _transform(self, name: str, path: Where, keys: TransformKeys, server: Target) -> Flow | None:
        document = self._document
        topics = self._topics((*path, "topics"), keys.topics)
        for key, topic in (("to", keys.to), ("error_topic", keys.error_topic)):
            if topic is not None:
                self._name((*path, key), topic)
        if (keys.sql is None) == (keys.sql_file is None):
            document.problem(path, f"{dotted(path)}: say what to select, with sql or with sql_file")
            return None
        sql = keys.sql or ""
        if keys.sql_file is not None:
            try:
                sql = self._path(keys.sql_file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                document.problem((*path, "sql_file"), f"{dotted((*path, 'sql_file'))} {keys.sql_file}: {why}")
        checkpoint = self._path(keys.checkpoint)
        self._own_state(name, path, str(checkpoint))

        def make() -> Any:
            from topics.pipeline.transform import Transform

            return Transform(
                source_of(server), list(topics), sql, keys.to, checkpoint, keys.watermark, keys.mode,
                keys.max_offsets, keys.error_topic, keys.staging,
            )  # fmt: skip

        return Flow(name, "transform", server, topics, None, keys.interval, checkpoint, make)

    def _own_state(self, name: str, path: Where, state: str) -> None:
        """Refuse a flow that has its state where another has its own: one would undo what the other does."""
        other = self._states.setdefault(state, name)
        if other != name:
            text = f"has its state in {state}, as flows.{other} has; give it a checkpoint or a place of its own"
            self._document.problem(path, f"{dotted(path)} {text}")

    def _topics(self, path: Where, given: str | list[str] | None) -> tuple[str, ...]:
        topics = (given,) if isinstance(given, str) else tuple(given or ())
        if given is not None and not topics:
            self._document.problem(path, f"{dotted(path)} is empty; it must name a topic")
        for at, topic in enumerate(topics):
            self._name(path if isinstance(given, str) else (*path, at), topic)
        return topics

    def _name(self, path: Where, topic: str) -> None:
        try:
            check_topic_name(topic)
        except TopicsError as error:
            self._document.problem(path, f"{dotted(path)}: {error.message}")

    def _path(self, text: str) -> Path:
        """A path of the file, which is below the directory of the file unless it is absolute."""
        return self._document.file.absolute().parent / text


def source_of(server: Target) -> dict[str, str]:
    """A server as options of the Spark source."""
    return {"url": server.url} if server.token is None else {"url": server.url, "token": server.token}


def _conf(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
