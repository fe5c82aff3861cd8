"""Frame: what the WAL is made of.

Everything that must survive is one frame in one shard of the WAL: a header with kind, topic id, lsn and, for an APPEND,
first seq and count; a payload; and a checksum of all of it (docs/storage-format.md has the layout). The lsn is one
counter over all shards, strictly increasing within a shard.

Why two checks: the checksum at the end says whether the frame is whole. When it is not, the header check says whether
at least the header may be trusted, and the header of an APPEND names exactly what is lost: topic, first seq and count.
The payload of an APPEND begins with a Block that names the same three again under a checksum of its own. So one damaged
place, wherever it is, leaves one of the two readable, and a loss is always known exactly. Why 8-byte alignment: the
search for the next frame after damage looks only there, and a length field never straddles a sector. A magic inside a
client's data does not mislead that search: the header holds zero bytes, and JSON text holds none.

The payload of an APPEND is a Block without delete flags (`block.decode(..., with_flags=False)`): deletes in the WAL are
frames of their own and never change a frame that is there. After the Block come the extras, opaque bytes of the engine
(idempotency key, producer, router position), up to the payload length. The payload of every other kind is the
msgpack of the struct that `PAYLOADS` names for it; a kind that is not listed there carries bytes of the engine's own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest, xxh32_intdigest

from topics.storage.flags import deleted_runs, from_bits

MAGIC: Final = b"TFRM"
HEADER_BYTES: Final = 48
CHECKSUM_BYTES: Final = 8
ALIGN_BYTES: Final = 8
FRAME_BYTES_MIN: Final = HEADER_BYTES + CHECKSUM_BYTES
# A length field beyond this is damage, not a frame; no request is near it.
PAYLOAD_BYTES_MAX: Final = 1 << 30
# An APPEND with more than this is a LargeFrame.
LARGE_BYTES: Final = 1 << 20
_KIND_AT: Final = 4
_FLAGS_AT: Final = 5

CREATE: Final = 1
CONFIG: Final = 2
DROP: Final = 3
APPEND: Final = 4
DELETE: Final = 5
CEILING: Final = 6
ROUTER_PUT: Final = 7
ROUTER_DROP: Final = 8
CURSOR: Final = 9
LEASE: Final = 10
DEAD_LETTER: Final = 11
LOST: Final = 12
HEADS: Final = 13
# Written over a torn region that has whole frames after it, so that no later start has to judge it again.
VOID: Final = 255
NAMES: Final = {
    CREATE: "create",
    CONFIG: "config",
    DROP: "drop",
    APPEND: "append",
    DELETE: "delete",
    CEILING: "ceiling",
    ROUTER_PUT: "router_put",
    ROUTER_DROP: "router_drop",
    CURSOR: "cursor",
    LEASE: "lease",
    DEAD_LETTER: "dead_letter",
    LOST: "lost",
    HEADS: "heads",
    VOID: "void",
}

# Kinds that change what exists: they are read in the order of their lsns over all shards.
STRUCTURAL: Final = frozenset((CREATE, DROP, ROUTER_PUT, ROUTER_DROP))

_HEADER = struct.Struct("<4sBBHIIQQQI")
_CHECK = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_LSN = struct.Struct("<16xQ")
_FLAGS = struct.Struct("<B")
_PADS = tuple(bytes(-n % ALIGN_BYTES) for n in range(ALIGN_BYTES))

assert _HEADER.size + _CHECK.size == HEADER_BYTES


class Lsns:
    """Hands out lsns, each once; `last` is the one before."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """The next lsn; put it into a frame and submit that before the next call."""
        self.last += 1
        return self.last


class Create(msgspec.Struct, array_like=True, frozen=True):
    """CREATE: a new topic. `config` is the JSON text of its resolved config."""

    name: str
    config: bytes
    ts: int


class Config(msgspec.Struct, array_like=True, frozen=True):
    """CONFIG: a topic's config is now this JSON text. Seqs up to `head_seq` had been handed out by then.

    `bound_head`, here and in DELETE, is the last seq that was visible when the change took effect: caps had acted on
    nothing after it, though the frames of later records may come before this one. -1 where it is not known.
    """

    config: bytes
    ts: int
    head_seq: int = 0
    bound_head: int = -1


class Drop(msgspec.Struct, array_like=True, frozen=True):
    """DROP: the topic and everything in it are gone."""

    ts: int


class Deletion(msgspec.Struct, array_like=True, frozen=True):
    """DELETE: records gone for good: all below `before_seq` (0: none), and those of `ranges`, ascending.

    A range is its first and last seq, or, where single records go here and there, the first seq and a bit for each from
    there on (flags.to_bits): a delete of every second one of a million records is to be a frame like others.

    `evicted` has the highest seqs that cap and TTL had taken by then: the flags of deleted records may be on disk
    before a restart reads this frame, and must not make room for others any earlier than they did.
    """

    before_seq: int
    ranges: Sequence[tuple[int, int | bytes]]
    ts: int
    extra: bytes = b""
    bound_head: int = -1
    evicted: tuple[int, int] = (0, 0)

    def runs(self) -> Iterator[tuple[int, int]]:
        """The ranges as first and last seq."""
        for first, rest in self.ranges:
            if isinstance(rest, int):
                yield first, rest
            else:
                for i, j in deleted_runs(from_bits(rest)):
                    yield first + i, first + j - 1


class Ceiling(msgspec.Struct, array_like=True, frozen=True):
    """CEILING: the topic may have handed out seqs up to this one."""

    seq: int


class Lost(msgspec.Struct, array_like=True, frozen=True):
    """LOST: a start has dealt with everything before it, and these are lost: (topic id, first seq, last seq).

    `reached` says how far it brought topics that take copies only while they have room: (topic id, next seq, source
    seq). `lost_power` is whether any frame that was not synced may have been missing.
    """

    ranges: list[tuple[int, int, int]]
    reached: list[tuple[int, int, int]] = []
    lost_power: bool = False


class Heads(msgspec.Struct, array_like=True, frozen=True):
    """HEADS: (topic id, last seq) of each topic, as a start found it in the log: it shows when files go missing."""

    heads: list[tuple[int, int]]


PAYLOADS: Final[dict[int, type[msgspec.Struct]]] = {
    CREATE: Create,
    CONFIG: Config,
    DROP: Drop,
    DELETE: Deletion,
    CEILING: Ceiling,
    LOST: Lost,
    HEADS: Heads,
}
_encode = msgspec.msgpack.Encoder().encode
_decoders = {kind: msgspec.msgpack.Decoder(payload).decode for kind, payload in PAYLOADS.items()}


class LargeFrame:
    """A frame that is written from its parts, since the copy that joins them would take longer than the writing."""

    __slots__ = ("_bytes", "parts")

    def __init__(self, parts: tuple[bytes, ...]) -> None:
        """The first part begins with the header."""
        self.parts = parts
        self._bytes = sum(map(len, parts))

    def __len__(self) -> int:
        return self._bytes


Frame = bytes | LargeFrame


def append(lsn: int, topic_id: int, first_seq: int, n: int, block_raw: bytes, extra: bytes = b"") -> Frame:
    """The APPEND frame of one Block (`Block.raw`: body and checksum, no delete flags) and the engine's extras."""
    length = len(block_raw) + len(extra)
    if length > LARGE_BYTES:
        return large(APPEND, lsn, topic_id, block_raw, extra, n=n, first_seq=first_seq)
    head = _HEADER.pack(MAGIC, APPEND, 0, 0, length, n, lsn, topic_id, first_seq, 0)
    body = b"".join((head, _CHECK.pack(xxh32_intdigest(head)), block_raw, extra, _PADS[length & 7]))
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body))


def large(kind: int, lsn: int, topic_id: int, first: bytes, rest: bytes, *, n: int, first_seq: int) -> LargeFrame:
    """The frame of any kind whose payload is `first` and then `rest`, without a copy of `first`."""
    length = len(first) + len(rest)
    head = _HEADER.pack(MAGIC, kind, 0, 0, length, n, lsn, topic_id, first_seq, 0)
    head += _CHECK.pack(xxh32_intdigest(head))
    end = rest + _PADS[length & 7]
    checksum = xxh3_64(head)
    checksum.update(first)
    checksum.update(end)
    return LargeFrame((head, first, end + _CHECKSUM.pack(checksum.intdigest())))


def encode(
    kind: int, lsn: int, topic_id: int, payload: bytes, *, n: int = 0, first_seq: int = 0, flags: int = 0
) -> bytes:
    """The frame of any other kind, with its payload as bytes."""
    assert kind != APPEND, "an APPEND is built by append()"
    length = len(payload)
    head = _HEADER.pack(MAGIC, kind, flags, 0, length, n, lsn, topic_id, first_seq, 0)
    body = b"".join((head, _CHECK.pack(xxh32_intdigest(head)), payload, _PADS[length & 7]))
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body))


def with_flags(encoded: bytes, flags: int) -> bytes:
    """The same frame with other flags."""
    head = b"".join((encoded[:_FLAGS_AT], _FLAGS.pack(flags), encoded[_FLAGS_AT + 1 : _HEADER.size]))
    body = b"".join((head, _CHECK.pack(xxh32_intdigest(head)), encoded[HEADER_BYTES:-CHECKSUM_BYTES]))
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body))


def control(kind: int, lsn: int, topic_id: int, payload: msgspec.Struct) -> bytes:
    """The frame of a kind that `PAYLOADS` lists."""
    assert type(payload) is PAYLOADS[kind], f"kind {kind} carries {PAYLOADS[kind].__name__}"
    return encode(kind, lsn, topic_id, _encode(payload))


def decode_payload(kind: int, payload: bytes | memoryview) -> Any:
    """The struct of a kind that `PAYLOADS` lists; the bytes as they are of any other."""
    decoder = _decoders.get(kind)
    return bytes(payload) if decoder is None else decoder(payload)


def void(region: bytes) -> bytes:
    """A frame as long as a region that holds none; as much of the region as fits is its payload."""
    assert len(region) >= FRAME_BYTES_MIN
    assert len(region) % ALIGN_BYTES == 0
    return encode(VOID, 0, 0, region[HEADER_BYTES:-CHECKSUM_BYTES])


def claimed_bytes(data: bytes, at: int) -> int:
    """The length that a frame at `at` claims, 0 where none begins; nothing is verified."""
    magic, _, _, _, length, *_ = _HEADER.unpack_from(data, at)
    return 0 if magic != MAGIC else FRAME_BYTES_MIN + (length + 7 & -8)


def lsn_of(frame: Frame) -> int:
    """The lsn of an encoded frame."""
    lsn: int = _LSN.unpack_from(frame if type(frame) is bytes else frame.parts[0])[0]  # type: ignore[union-attr]
    return lsn


def kind_of(frame: Frame) -> int:
    """The kind of an encoded frame."""
    return (frame if isinstance(frame, bytes) else frame.parts[0])[_KIND_AT]
