"""Fields that the server adds to a record's `meta`: where a copy came from (ROUTER-19, QUEUE-14).

`meta` is JSON text that is otherwise never touched. A field is appended to what is there, which stays byte for byte as
it was; only text that may hold the field already is decoded and written anew.
"""

from __future__ import annotations

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


def with_fields(meta: bytes | None, fields: dict[str, str]) -> bytes:
    """The text of `meta` with these fields in it."""
    added = _encode(fields)
    if meta is None:
        return added
    if b"\\u" in meta or any(name.encode() in meta for name in fields):
        return _encode(_decode(meta) | fields)
    body = meta.rstrip()[:-1].rstrip()
    return added if body.lstrip() == b"{" else b"%b,%b" % (body, added[1:])


def without_fields(meta: bytes | None, names: frozenset[str]) -> bytes | None:
    """The text of `meta` without these fields; None where nothing is left."""
    if meta is None:
        return None
    kept = {name: value for name, value in _decode(meta).items() if name not in names}
    return _encode(kept) if kept else None
