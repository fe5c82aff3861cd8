"""What the answer to a refused body says (HTTP-12): the field, the value, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from topics.errors import InvalidRequest
from topics.server.api import bodies
from topics.server.api.records import write_body
from topics.server.delivery import commands


@pytest.mark.parametrize(
    ("decode", "body", "expected", "field"),
    [
        (bodies.config, b'{"discard":"new"}', "discard: 'new' is not one of old, reject", "discard"),
        (bodies.config, b'{"type":"topic"}', "type: 'topic' is not one of log, queue", "type"),
        (write_body, b'{"records":[],"config":{"durability":"x"}}', "memory, disk, fsync", "config.durability"),
        (write_body, b"{}", "records is missing", "records"),
        (write_body, b'{"records":[{"data":1},{}]}', "records[1].data is missing", "records[1].data"),
        (write_body, b"", "the body is empty: send a JSON object", None),
        (commands.decode, b'{"op":"subscribe","topic":"a","consistency":"x"}', "of eventual, strong", "consistency"),
        (commands.decode, b'{"op":"dance"}', "op must be subscribe, unsubscribe, publish or ping", "op"),
        (commands.decode, b"{}", "op must be subscribe, unsubscribe, publish or ping", "op"),
        (write_body, b'{"records":NaN}', "the body is not valid JSON: invalid character (byte 11)", None),
        (write_body, b'{"records":', "the body is not valid JSON: it ends too early (byte 11)", None),
        (write_body, b" \n", "the body is not valid JSON: it holds nothing but white space", None),
        (write_body, b"[" * 5000, "the body: expected `object`, got `array`", None),
        (write_body, b'{"x":' + b"[" * 50_000, "nested too deeply: send what is so deep as a string", None),
        (write_body, b'{"records":[{"data":"\\ud83d"}]}', "the body holds \\ud83d (byte 21), one half of", None),
        (write_body, b'{"records":[{"data":"\\\\\\udE00 and more"}]}', "holds \\udE00 (byte 23)", None),
        (write_body, b'{"records":[{"data":"\\ud83d\\ude00"}]', "it ends too early (byte 36)", None),
        (commands.decode, b'{"op":"ping","request_id":"\\ud83d"}', "the message holds \\ud83d (byte 27)", None),
        (commands.decode, b"{", "the message is not valid JSON: it ends too early (byte 1)", None),
        (commands.decode, b"[]", "the message: expected `object`, got `array`", None),
    ],
)  # fmt: skip
def test_message_says_what_is_allowed(
    decode: Callable[[bytes], Any], body: bytes, expected: str, field: str | None
) -> None:
    """HTTP-12: a message for people, and the field for machines."""
    with pytest.raises(InvalidRequest) as refused:
        decode(body)
    assert expected in refused.value.message
    assert refused.value.detail.get("field") == field
