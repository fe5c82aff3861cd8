"""`docs/api.md` names every route, config field and error code that there is, and none besides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.harness.server import ManualServer
from topics import errors
from topics.engine.config import DEFAULTS, TopicConfig
from topics.errors import TopicsError
from topics.server.api.principal import scope_text

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


def rows(pattern: str) -> list[tuple[str, ...]]:
    """The rows of the document's tables whose first cells are these."""
    return [found.groups() for found in re.finditer(rf"^\| {pattern} \|", TEXT, re.MULTILINE)]


def families(kind: type[TopicsError]) -> Iterator[type[TopicsError]]:
    yield kind
    for part in kind.__subclasses__():
        yield from families(part)


def test_routes() -> None:
    """PROOF-4: with the scope of each."""
    aliases = {"/healthz", "/readyz"}
    scope = {None: "none", 0: "any"}
    expected = {
        (row.method, row.path, scope.get(row.scopes) or scope_text(row.scopes or 0))
        for row in ManualServer().assembly.rows
        if row.path not in aliases and not row.file
    }
    assert set(rows(r"`([A-Z]+) (/\S*)` \| ([a-z+]+)")) == expected
    assert all(f"`{alias}`" in TEXT for alias in aliases)


def test_config_fields() -> None:
    """PROOF-4, TOPIC-5: with the default of each."""
    config = TEXT.partition("## Config")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", config, re.MULTILINE))
    assert shown == {name: json.dumps(getattr(DEFAULTS, name)) for name in TopicConfig.__struct_fields__}


def test_error_codes() -> None:
    """PROOF-4: with the status of each."""
    defined = {kind for kind in families(TopicsError) if kind.__module__ == errors.__name__}
    assert set(rows(r"(\d{3}) \| `(\w+)`")) == {(str(kind.status), kind.code) for kind in defined}
