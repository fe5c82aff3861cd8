"""Slicing: the body of a large write, decoded part by part (HTTP-14, HTTP-27).

The decoder holds the interpreter for as long as it runs, so a large body is cut into slices of whole records, and each
is decoded and checked on its own. `feed` takes the next part, in the order of the body and cut anywhere; it costs a few
milliseconds at most, whatever the part holds. `finish` returns what came of it.

Where a record ends, the decoder itself says: text after a value is an error that names its place. To ask that for each
record would be slow, so a guess comes first: the last place in the part at which something begins as the first record
did. If everything before that place decodes as an array of records, it is where a record begins: how far a JSON parser
is after some text depends on that text alone.

Counts and sizes are refused as soon as they are exceeded: records, the bytes of one record, and what surrounds the
records. That surrounding, the envelope, is put together again without the records and decoded like any small write.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Final, NoReturn, cast

import msgspec

from topics.engine.limits import Limits
from topics.engine.requests import RecordIn
from topics.engine.write import batch as batches
from topics.errors import BatchTooLarge, InvalidRequest, PayloadTooLarge, RecordTooLarge
from topics.server.api import bodies
from topics.server.api.repeats import SPACES, TRUNCATED, Repeats, names_in_records, records_may_repeat, value_end
from topics.server.api.tracing import trace

PART_BYTES: Final = 128 * 1024
"""What to feed at a time."""
ENVELOPE_FIELDS_MAX: Final = 1000
_SLICE_RECORDS_MAX: Final = 1000
"""How many records are looked for one by one at a time."""
_WRONG_GUESSES_MAX: Final = 2

_strict: Final = cast("Callable[[bytes], list[RecordIn]]", msgspec.json.Decoder(list[bodies.StrictRecord]).decode)
_loose: Final = msgspec.json.Decoder(list[RecordIn]).decode
_name: Final = msgspec.json.Decoder(str).decode
_NAME: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SPACES: Final = re.compile(rb"[ \t\n\r]*+")
_BETWEEN: Final = re.compile(rb"\}[ \t\n\r]*,[ \t\n\r]*\Z")
_BETWEEN_MAX: Final = 100
"""Records further apart are found one by one."""
_BEGINNING: Final = re.compile(rb'\{[ \t\n\r]*"[^"\\]{0,64}"')
_COLON: Final = ord(":")
_KINDS: Final = dict.fromkeys([b"%d" % digit for digit in range(10)], "int") | {
    b"-": "int", b"[": "array", b'"': "str", b"t": "bool", b"f": "bool", b"n": "null"
}  # fmt: skip
_PATH: Final = re.compile(r" - at `\$\[([0-9]+)\]")


class Slicing:
    """One large write on its way, see the module."""

    def __init__(
        self, limits: Limits, envelope_max_bytes: int, whole: str = "the body", traceparent: str | None = None
    ) -> None:
        self.records: list[RecordIn] = []
        self.columns: list[batches.Batch] = []
        """The records again, slice by slice, as columns that keep every limit."""
        self.unknown: dict[str, None] = {}
        """The names of fields in records that are no field of ours, the first few."""
        self._limits = limits
        self._envelope_max = envelope_max_bytes
        self._whole = whole
        self._traceparent = traceparent
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._received = 0
        self._split_character = False
        # What was fed and not decoded yet, where in the body that begins, and how far it is decoded.
        self._pending = b""
        self._at = self._pos = 0
        # Not worth a look before this much is pending.
        self._wanted = 0
        self._fields: dict[str, bytes] = {}
        self._envelope_bytes = 0
        self._wrong_guesses = 0
        self._repeats = Repeats()
        self._next: Callable[[], bool] = self._begin

    def feed(self, part: bytes) -> None:
        """The next part of the body; raises InvalidRequest, PayloadTooLarge."""
        self._check_utf8(part)
        self._received += len(part)
        self._pending += part
        if len(self._pending) >= self._wanted:
            self._go_on()

    def finish(self) -> bytes:
        """The body was fed: its envelope, with an empty array in place of its records where there was one."""
        if self._split_character:
            self._check_utf8(b"", final=True)
        self._go_on()
        if self._next != self._end:
            self._refuse(TRUNCATED)
        fields = [b"%b:%b" % (msgspec.json.encode(name), value) for name, value in self._fields.items()]
        return b"{" + b",".join(fields) + b"}"

    def _go_on(self) -> None:
        self._wanted = 0
        while self._next():
            pass
        self._pending = self._pending[self._pos :]
        self._at += self._pos
        self._pos = 0

    def _check_utf8(self, part: bytes, *, final: bool = False) -> None:
        if part.isascii() and not self._split_character:
            return
        try:
            self._utf8.decode(part, final)
        except UnicodeDecodeError as error:
            # A character that was cut in two begins before the part.
            offset = self._received + len(part) - len(error.object) + error.start
            raise InvalidRequest(f"{self._whole} is not UTF-8 (byte {offset})", offset=offset) from None
        self._split_character = bool(self._utf8.getstate()[0])

    # What comes next: each step returns whether there may be another one in what is pending.

    def _begin(self) -> bool:
        sign = self._sign()
        if not sign:
            return False
        if sign != b"{":
            self._refuse_type(sign)
        self._pos += 1
        self._next = self._first_field
        return True

    def _first_field(self) -> bool:
        if self._sign() == b"}":
            self._pos += 1
            self._next = self._end
            return True
        return self._field()

    def _field(self) -> bool:
        """A name, a colon, and the value of a field that is not `records`."""
        sign, pending = self._sign(), self._pending
        if not sign:
            return False
        if sign != b'"':
            self._refuse_here(self._pos)
        named = _NAME.match(pending, self._pos)
        if named is None:
            return self._wait_within_envelope()
        colon = _after_spaces(pending, named.end())
        start = _after_spaces(pending, colon + 1)
        if start >= len(pending):
            return self._wait_within_envelope()
        if pending[colon] != _COLON:
            self._refuse_here(colon)
        name = self._decoded_name(named[0])
        if name in self._fields:
            raise InvalidRequest(f"{name[:64]} is given twice; send the one that is meant", field=name[:64])
        if name == "records" and pending.startswith(b"[", start):
            self._fields[name] = b"[]"
            self._pos = start + 1
            self._next = self._first_record
            return True
        end = self._value_end(start)
        if end is None:
            return self._wait_within_envelope()
        self._take_field(name, pending[start:end].rstrip(SPACES), end)
        return True

    def _take_field(self, name: str, value: bytes, end: int) -> None:
        self._fields[name] = value
        self._envelope_bytes += end - self._pos
        if len(self._fields) > ENVELOPE_FIELDS_MAX:
            raise InvalidRequest(f"{self._whole} has more than {ENVELOPE_FIELDS_MAX} fields besides its records")
        if self._envelope_bytes > self._envelope_max:
            self._refuse_envelope()
        self._pos = end
        self._next = self._after_field

    def _after_field(self) -> bool:
        return self._after(b"}", self._field, self._end)

    def _first_record(self) -> bool:
        if self._sign() == b"]":
            self._pos += 1
            self._next = self._after_field
            return True
        return self._guess()

    def _guess(self) -> bool:
        """As many records as there are before the last place that looks like the beginning of one."""
        if not self._sign():
            return False
        pending, pos = self._pending, self._pos
        beginning = _BEGINNING.match(pending, pos)
        cut = -1 if beginning is None else pending.rfind(beginning[0], beginning.end())
        if cut > 0 and self._wrong_guesses < _WRONG_GUESSES_MAX:
            between = _BETWEEN.search(pending, max(pos, cut - _BETWEEN_MAX), cut)
            if between is not None:
                try:
                    self._take(_array(pending, pos, between.start() + 1), _strict)
                except (msgspec.DecodeError, RecursionError):
                    self._wrong_guesses += 1
                else:
                    self._pos = cut
                    self._next = self._guess
                    return True
        return self._search()

    def _search(self) -> bool:
        """The next records, found one by one."""
        pending = self._pending
        at, end, count = self._pos, 0, 0
        while count < _SLICE_RECORDS_MAX:
            after = self._value_end(at)
            if after is None:
                break
            end = after
            count += 1
            if pending[after : after + 1] != b",":
                break
            at = after + 1
        if not count:
            size = len(pending) - self._pos
            if size > self._limits.max_record_bytes + self._envelope_max:
                self._refuse_record(size)
            return self._wait()
        text = _array(pending, self._pos, end)
        try:
            self._take(text, _strict)
        except msgspec.ValidationError:
            self._take_loosely(text)
        self._pos = end
        self._next = self._after_record
        return True

    def _after_record(self) -> bool:
        return self._after(b"]", self._guess, self._after_field)

    def _after(self, closing: bytes, another: Callable[[], bool], outside: Callable[[], bool]) -> bool:
        sign = self._sign()
        if not sign:
            return False
        if sign not in (b",", closing):
            self._refuse_here(self._pos)
        self._pos += 1
        self._next = another if sign == b"," else outside
        return True

    def _end(self) -> bool:
        """Nothing but white space may follow."""
        if self._sign():
            self._refuse("JSON is malformed: trailing characters (byte 1)", self._pos)
        return False

    # Records

    def _take(self, text: bytes, decode: Callable[[bytes], list[RecordIn]]) -> None:
        """The records in an array; changes nothing where the text is no such array."""
        records = decode(text)
        first = len(self.records)
        most = self._limits.max_batch_records
        if first + len(records) > most:
            raise BatchTooLarge(
                f"more than {most} records in one write: split the batch",
                field="records",
                limit="max_batch_records",
                max=most,
            )
        if decode is _loose or records_may_repeat(text, records):
            self._repeats.of_records(text, first)
        if self._traceparent is not None:
            trace(records, self._traceparent)
        self.columns.append(batches.columns(records, None, self._limits, first))
        self.records += records

    def _take_loosely(self, text: bytes) -> None:
        try:
            self._take(text, _loose)
        except msgspec.ValidationError as error:
            first = len(self.records)
            path = _PATH.sub(lambda found: f" - at `$.records[{first + int(found[1])}]", str(error))
            raise bodies.described(path, self._whole) from None
        if len(self.unknown) < bodies.UNKNOWN_SHOWN_MAX:
            self.unknown |= dict.fromkeys(bodies.record.unknown_among(names_in_records(text), "records[]."))

    # The text

    def _sign(self) -> bytes:
        """The next byte that is not white space, at `_pos` from now on; none where there is none yet."""
        self._pos = pos = _after_spaces(self._pending, self._pos)
        return self._pending[pos : pos + 1]

    def _value_end(self, at: int) -> int | None:
        """Where something follows the value at `at` of what is pending; None where its end is not there yet."""
        try:
            return value_end(self._pending, at)
        except RecursionError:
            raise InvalidRequest(f"{self._whole} {bodies.TOO_DEEP}") from None
        except msgspec.DecodeError as error:
            self._refuse(str(error), at)

    def _decoded_name(self, quoted: bytes) -> str:
        try:
            return _name(quoted)
        except msgspec.DecodeError as error:
            self._refuse(str(error), self._pos)

    def _wait(self) -> bool:
        """Look again once there is twice as much: what ends later is passed over a bounded number of times."""
        self._wanted = 2 * (len(self._pending) - self._pos)
        return False

    def _wait_within_envelope(self) -> bool:
        if self._envelope_bytes + len(self._pending) - self._pos > self._envelope_max:
            self._refuse_envelope()
        return self._wait()

    # Refusals

    def _refuse(self, problem: str, at: int = 0) -> NoReturn:
        raise bodies.malformed(self._pending[at:], problem, self._whole, self._at + at)

    def _refuse_here(self, at: int) -> NoReturn:
        self._refuse("JSON is malformed: invalid character (byte 0)", at)

    def _refuse_type(self, sign: bytes) -> NoReturn:
        kind = _KINDS.get(sign)
        if kind is None:
            self._refuse_here(self._pos)
        raise bodies.described(f"Expected `object`, got `{kind}`", self._whole)

    def _refuse_envelope(self) -> NoReturn:
        most = self._envelope_max
        text = f"The write has more than {most} bytes around its records."
        raise PayloadTooLarge(text, limit="max_command_bytes", max=most)

    def _refuse_record(self, size: int) -> NoReturn:
        i, most = len(self.records), self._limits.max_record_bytes
        raise RecordTooLarge(
            f"records[{i}] has more than {size} bytes; the limit of its data and meta is {most}",
            field=f"records[{i}]",
            index=i,
            limit="max_record_bytes",
            max=most,
        )


def _array(text: bytes, start: int, end: int) -> bytes:
    """The values of a part of a text as an array. They may be large, and are copied only once."""
    return b"".join((b"[", memoryview(text)[start:end], b"]"))


def _after_spaces(text: bytes, at: int) -> int:
    found = _SPACES.match(text, at)
    assert found is not None
    return found.end()
