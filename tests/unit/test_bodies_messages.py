"""What a refused body is told (API §0.5): the field, the value, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from topics.errors import InvalidRequest
from topics.server import bodies, commands


@pytest.mark.parametrize(
    ("decode", "body", "told", "field"),
    [
        (bodies.config, b'{"discard":"new"}', "discard: 'new' is not one of old, reject", "discard"),
        (bodies.config, b'{"type":"topic"}', "type: 'topic' is not one of log, queue", "type"),
        (bodies.write, b'{"records":[],"config":{"durability":"x"}}', "memory, disk, fsync", "config.durability"),
        (bodies.write, b"", "the body is empty: send a JSON object", None),
        (commands.decode, b'{"op":"subscribe","topic":"a","consistency":"x"}', "of eventual, strong", "consistency"),
        (commands.decode, b'{"op":"dance"}', "op must be subscribe, unsubscribe, publish or ping", "op"),
        (commands.decode, b"{}", "op must be subscribe, unsubscribe, publish or ping", "op"),
        (commands.decode, b"[]", "the message: expected `object`, got `array`", None),
    ],
)  # fmt: skip
def test_message_says_what_is_allowed(
    decode: Callable[[bytes], Any], body: bytes, told: str, field: str | None
) -> None:
    """API §0.5: a message for people, and the field for machines."""
    with pytest.raises(InvalidRequest) as refused:
        decode(body)
    assert told in refused.value.message
    assert refused.value.detail.get("field") == field
