"""The composite cursor: the position of every watched topic in one opaque `id` (WATCH-15).

Up to `NAMED_TOPICS_MAX` topics it is base64url, without padding, of the JSON map `{"jobs":5210,"events":88130}`. A
topic that was deleted and created again while the session lived is in another epoch than the one the session began
with; the map then says so under `$epoch`, a key that no topic can have. So an id from before the recreate is never
taken for a position after it.

With more topics the names would outgrow a request head, and the id is a checkpoint token instead: `~`, then base64url
of a digest of the sorted names, of the positions in that order, and of (index, epoch) for every epoch that changed, 8
bytes each. It holds exactly the same.

`decode` reads both. An id that is malformed, or names topics that the session does not watch, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from topics.errors import InvalidRequest

NAMED_TOPICS_MAX: Final = 64
TOKEN_MARK: Final = b"~"
SEQ_MAX: Final = 2**63 - 1
_DIGEST_BYTES: Final = 8
_SHOWN_MAX: Final = 64

_decode_map: Final = msgspec.json.Decoder(dict[str, int | dict[str, int]]).decode


class Position(NamedTuple):
    """A reader's position in a topic; `epoch` is None where the cursor does not say which instance it means."""

    seq: int
    epoch: int | None


class Layout:
    """The watched topics of a session, in the order in which its ids list them."""

    __slots__ = ("_digest", "_keys", "named", "names")

    def __init__(self, names: Sequence[str]) -> None:
        self.named = len(names) <= NAMED_TOPICS_MAX
        self.names = tuple(names) if self.named else tuple(sorted(names))
        self._keys = [b'"%b":' % name.encode() for name in self.names] if self.named else []
        self._digest = hashlib.sha256("\n".join(self.names).encode()).digest()[:_DIGEST_BYTES]

    def encode(self, seqs: Sequence[int], epochs: Mapping[int, int]) -> bytes:
        """The id of these positions; `epochs` has those topics, by index, whose epoch has changed."""
        if not self.named:
            values = [*seqs, *(value for pair in sorted(epochs.items()) for value in pair)]
            return TOKEN_MARK + _base64(self._digest + struct.pack(f">{len(values)}Q", *values))
        fields = [b"%b%d" % pair for pair in zip(self._keys, seqs, strict=True)]
        if epochs:
            changed = b",".join(b"%b%d" % (self._keys[i], epoch) for i, epoch in sorted(epochs.items()))
            fields.append(b'"$epoch":{%b}' % changed)
        return _base64(b"{%b}" % b",".join(fields))

    def decode(self, id: bytes | str) -> dict[str, Position]:
        """The positions that an id names; raises InvalidRequest where it is malformed or not of these topics."""
        raw = id.encode("ascii", "replace") if isinstance(id, str) else id
        if raw.startswith(TOKEN_MARK):
            return self._decode_token(raw)
        try:
            found = _decode_map(_unbase64(raw))
        except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
            raise _refusal("it is not base64url of a map of positions", raw) from None
        epochs = found.pop("$epoch", {})
        if not isinstance(epochs, dict) or not all(0 <= epoch <= SEQ_MAX for epoch in epochs.values()):
            raise _refusal("it is not base64url of a map of positions", raw)
        positions = {}
        for name, seq in found.items():
            if name not in self.names:
                raise _refusal(f'it names "{name[:_SHOWN_MAX]}", which this session does not watch', raw)
            if not isinstance(seq, int) or not 0 <= seq <= SEQ_MAX:
                raise _refusal(f'its position in "{name[:_SHOWN_MAX]}" is not a seq', raw)
            positions[name] = Position(seq, epochs.get(name))
        return positions

    def _decode_token(self, raw: bytes) -> dict[str, Position]:
        try:
            packed = _unbase64(raw[len(TOKEN_MARK) :])
        except (binascii.Error, ValueError):
            raise _refusal("it is not a checkpoint token", raw) from None
        count = len(self.names)
        values, rest = divmod(len(packed) - _DIGEST_BYTES, 8)
        if rest or values < count or (values - count) % 2 or packed[:_DIGEST_BYTES] != self._digest:
            raise _refusal("it is not a checkpoint token of these topics", raw)
        seqs = struct.unpack_from(f">{values}Q", packed, _DIGEST_BYTES)
        epochs = dict(zip(seqs[count::2], seqs[count + 1 :: 2], strict=True))
        if max(seqs, default=0) > SEQ_MAX or any(i >= count for i in epochs):
            raise _refusal("it is not a checkpoint token of these topics", raw)
        return {name: Position(seqs[i], epochs.get(i)) for i, name in enumerate(self.names)}


def _refusal(problem: str, raw: bytes) -> InvalidRequest:
    shown = raw[:_SHOWN_MAX].decode("ascii", "replace")
    return InvalidRequest(f"the cursor is not one of this session: {problem}", cursor=shown)


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _unbase64(data: bytes) -> bytes:
    stripped = data.rstrip(b"=")
    padded = stripped + b"=" * (-len(stripped) % 4)
    return base64.b64decode(padded, altchars=b"-_", validate=True)
