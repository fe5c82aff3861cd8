"""What a part of the server takes where nobody configures it is what the settings say (LIMIT-13)."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from topics.engine import Limits
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.server.http.limits import ConnectionLimits
from topics.settings import Settings
from topics.storage.store import Store
from topics.storage.wal.shard_files import FILE_BYTES


@pytest.mark.parametrize("part", [Limits(), UpkeepSettings(), ConnectionLimits()], ids=lambda part: type(part).__name__)
def test_defaults_of_a_part_are_those_of_the_settings(part: Any) -> None:
    """LIMIT-13: a test without settings of its own sees the server that an operator gets."""
    given = Settings()
    shared = [name for name in part.__struct_fields__ if hasattr(given, name)]
    assert shared
    assert {name: getattr(part, name) for name in shared} == {name: getattr(given, name) for name in shared}


def test_defaults_of_the_store_are_those_of_the_settings() -> None:
    """LIMIT-13, DURABLE-15: and there is room for the next file of the log when writes are refused."""
    given, parameters = Settings(), inspect.signature(Store).parameters
    assert parameters["min_free_bytes"].default == given.min_free_bytes
    assert parameters["shards"].default == given.wal_shards
    assert given.min_free_bytes >= given.wal_shards * FILE_BYTES
