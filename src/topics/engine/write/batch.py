"""Batch: the records of one write, checked against every limit and turned into columns (WRITE-5 to WRITE-13).

Nothing changes until the whole batch has passed, so a bad record has no effect on anything else. Sizes are bytes of the
JSON text as it was received. The checks look at whole columns first and at single records only to name the one at
fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn, cast

import msgspec

from topics.engine.limits import Limits
from topics.engine.requests import NO_RAW, RecordIn, Write
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.storage.block import RECORD_FRAMING_BYTES, Draft

META_KEYS_MAX: Final = 64
KEY_CHARS_MAX: Final = 256

_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
_decode_metas = msgspec.json.Decoder(list[dict[str, str]]).decode
_NULL: Final = b"null"


class Batch:
    """The columns of one write; a column that no record uses is None.

    Where there is a `draft`, it holds the texts, and `datas` and `metas` only say how many there are.
    """

    __slots__ = ("datas", "draft", "metas", "nodes", "size_bytes", "tags")

    def __init__(
        self,
        datas: Sequence[bytes],
        nodes: list[bytes | None] | None,
        tags: list[bytes | None] | None,
        metas: list[bytes | None] | None,
        size_bytes: int,
        draft: Draft | None = None,
    ) -> None:
        self.datas = datas
        self.draft = draft
        self.nodes = nodes
        self.tags = tags
        self.metas = metas
        self.size_bytes = size_bytes


class CheckedWrite(Write, kw_only=True):
    """A large write whose records were checked and laid out before it reaches the engine.

    Its `records` are there for their number and their delays; their texts may be gone.
    """

    batch: Batch


def check(write: Write, limits: Limits) -> Batch:
    """The columns of a write that keeps every limit; raises an InvalidRequest that names the record that does not."""
    records = write.records
    n = len(records)
    if n == 0:
        raise InvalidRequest("records must hold at least one record", field="records")
    if n > limits.max_batch_records:
        raise BatchTooLarge(
            f"{n} records in one write; the limit is {limits.max_batch_records}: split the batch",
            field="records",
            count=n,
            limit="max_batch_records",
            max=limits.max_batch_records,
        )
    if write.idempotency_key is not None or write.producer_id is not None or write.producer_seq is not None:
        _check_keys(write)
    if n == 1:
        return _check_one(records[0], write.node, limits)
    if isinstance(write, CheckedWrite):
        return write.batch
    return columns(records, write.node, limits)


def columns(records: Sequence[RecordIn], node: str | None, limits: Limits, first: int = 0) -> Batch:
    """The columns of records that keep every limit, the first of which is the record number `first` of its write."""
    datas: list[bytes] = [record.data for record in records]
    sizes = list(map(len, datas))
    largest = max(sizes)
    total = sum(sizes) + RECORD_FRAMING_BYTES * len(sizes)
    tags = _labels([record.tag for record in records], None, "tag", limits.max_tag_bytes, first)
    nodes = _labels([record.node for record in records], node, "node", limits.max_node_bytes, first)
    metas = _metas(records, limits, first)
    if metas is not None:
        largest += max(map(len, filter(None, metas)))
    if largest > limits.max_record_bytes:
        _find_too_large(sizes, metas, limits, first)
    for column in (tags, nodes, metas):
        if column is not None:
            total += sum(map(len, filter(None, column)))
    return Batch(datas, nodes, tags, metas, total)


def add_node(parts: Sequence[Batch], node: str, limits: Limits) -> None:
    """Give the node of a write to those of its records that have none."""
    text = node.encode()
    if len(text) > limits.max_node_bytes:
        refuse_label("node", "node", len(text), limits.max_node_bytes)
    for part in parts:
        given = part.nodes or [None] * len(part.datas)
        part.nodes = [text if label is None else label for label in given]
        part.size_bytes += given.count(None) * len(text)


def join(parts: Sequence[Batch]) -> Batch:
    """The records of several batches, in their order, as one."""
    sizes = [len(part.datas) for part in parts]
    return Batch(
        [data for part in parts for data in part.datas],
        _joined([part.nodes for part in parts], sizes),
        _joined([part.tags for part in parts], sizes),
        _joined([part.metas for part in parts], sizes),
        sum([part.size_bytes for part in parts]),
    )


def _joined(columns: list[list[bytes | None] | None], sizes: list[int]) -> list[bytes | None] | None:
    if columns.count(None) == len(columns):
        return None
    return [text for column, n in zip(columns, sizes, strict=True) for text in column or [None] * n]


def _check_one(only: RecordIn, node: str | None, limits: Limits) -> Batch:
    """The columns of a write of one record, the common case."""
    size = len(only.data)
    total = size + RECORD_FRAMING_BYTES
    tags: list[bytes | None] | None = None
    nodes: list[bytes | None] | None = None
    metas: list[bytes | None] | None = None
    if only.tag is not None:
        tag = only.tag.encode()
        if len(tag) > limits.max_tag_bytes:
            refuse_label("tag", "records[0].tag", len(tag), limits.max_tag_bytes)
        tags = [tag]
        total += len(tag)
    if only.node is not None or node is not None:
        nodes = _labels([only.node], node, "node", limits.max_node_bytes)
        assert nodes is not None
        total += len(nodes[0] or b"")
    if only.meta is not NO_RAW:
        metas = _metas([only], limits)
        total += len(metas[0] or b"") if metas else 0
    if size + (len(metas[0] or b"") if metas else 0) > limits.max_record_bytes:
        _find_too_large([size], metas, limits)
    return Batch((only.data,), nodes, tags, metas, total)


def _check_keys(write: Write) -> None:
    for name, value in (("idempotency_key", write.idempotency_key), ("producer_id", write.producer_id)):
        if value is not None and not 0 < len(value) <= KEY_CHARS_MAX:
            raise InvalidRequest(
                f"{name} has {len(value)} characters; it may have 1 to {KEY_CHARS_MAX}", field=name, max=KEY_CHARS_MAX
            )
    if (write.producer_id is None) != (write.producer_seq is None):
        raise InvalidRequest("producer_id and producer_seq go together", field="producer_id")


def _labels(
    values: list[str | None], default: str | None, name: str, bytes_max: int, first: int = 0
) -> list[bytes | None] | None:
    if values[0] is None and values.count(None) == len(values):
        if default is None:
            return None
        text = default.encode()
        if len(text) > bytes_max:
            refuse_label(name, name, len(text), bytes_max)
        return [text] * len(values)
    if default is not None:
        values = [default if value is None else value for value in values]
    encoded: list[bytes | None]
    try:
        # Mostly all records have one, or none has.
        encoded = list(map(str.encode, cast("list[str]", values)))
    except TypeError:
        encoded = [None if value is None else value.encode() for value in values]
    if max(map(len, filter(None, encoded)), default=0) > bytes_max:
        for i, label in enumerate(encoded, first):
            if label is not None and len(label) > bytes_max:
                refuse_label(name, f"records[{i}].{name}", len(label), bytes_max, index=i)
    return encoded


def refuse_label(name: str, field: str, size: int, bytes_max: int, **where: int) -> NoReturn:
    """Raise for a tag or a node that is too long."""
    raise InvalidRequest(
        f"{field} has {size} bytes; the limit is {bytes_max}",
        field=field,
        **where,
        bytes=size,
        limit=f"max_{name}_bytes",
        max=bytes_max,
    )


def _metas(records: Sequence[RecordIn], limits: Limits, first: int = 0) -> list[bytes | None] | None:
    raws = [record.meta for record in records]
    if raws.count(NO_RAW) == len(raws):
        return None
    metas: list[bytes | None] = [bytes(raw) or None for raw in raws]
    if _NULL in metas:
        metas = [None if meta == _NULL else meta for meta in metas]
    given: list[bytes] = list(filter(None, metas))
    if not given:
        return None
    if not _are_metas(given, limits):
        for i, meta in enumerate(metas, first):
            if meta is not None:
                _check_meta(meta, i, limits)
    return metas


def _are_metas(given: list[bytes], limits: Limits) -> bool:
    """Whether each of these is a meta that keeps every limit."""
    if max(map(len, given)) > limits.max_meta_bytes:
        return False
    try:
        # Each is one JSON value already, so joined they are as many.
        return max(map(len, _decode_metas(b"[" + b",".join(given) + b"]"))) <= META_KEYS_MAX
    except msgspec.DecodeError:
        return False


def _check_meta(meta: bytes, i: int, limits: Limits) -> None:
    field = f"records[{i}].meta"
    if len(meta) > limits.max_meta_bytes:
        raise RecordTooLarge(
            f"{field} has {len(meta)} bytes; the limit is {limits.max_meta_bytes}",
            field=field,
            index=i,
            bytes=len(meta),
            limit="max_meta_bytes",
            max=limits.max_meta_bytes,
        )
    try:
        keys = _decode_meta(meta)
    except (msgspec.ValidationError, msgspec.DecodeError):
        _refuse_meta(meta, field)
    if len(keys) > META_KEYS_MAX:
        raise RecordTooLarge(
            f"{field} has {len(keys)} keys; the limit is {META_KEYS_MAX}",
            field=field,
            index=i,
            limit="max_meta_keys",
            max=META_KEYS_MAX,
        )


def _refuse_meta(meta: bytes, field: str) -> NoReturn:
    value = msgspec.json.decode(meta)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object of strings", field=field)
    key = next(key for key, entry in value.items() if not isinstance(entry, str))
    raise InvalidRequest(f'{field} must hold strings only; "{key[:64]}" is none', field=field, key=key[:64])


def _find_too_large(sizes: list[int], metas: list[bytes | None] | None, limits: Limits, first: int = 0) -> None:
    for i, size in enumerate(sizes, first):
        total = size + len((metas and metas[i - first]) or b"")
        if total > limits.max_record_bytes:
            raise RecordTooLarge(
                f"records[{i}] has {total} bytes of data and meta; the limit is {limits.max_record_bytes}",
                field=f"records[{i}]",
                index=i,
                bytes=total,
                limit="max_record_bytes",
                max=limits.max_record_bytes,
            )
