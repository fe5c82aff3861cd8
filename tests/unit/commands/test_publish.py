"""The lines of an input, however it arrives."""

from __future__ import annotations

import os
import threading

import pytest

from topics.commands import publish
from topics.commands.publish import BadLine, lines_of


def lines(*writes: bytes) -> list[list[bytes]]:
    """What comes out of a pipe into which these are written one after the other."""
    reading, writing = os.pipe()
    came: list[list[bytes]] = []

    def write() -> None:
        for each in writes:
            os.write(writing, each)
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        came += lines_of(reading)
    finally:
        os.close(reading)
        thread.join()
    return came


@pytest.mark.parametrize("read_bytes", [1, 3, 1 << 20])
def test_lines_are_whole_however_they_arrive(monkeypatch: pytest.MonkeyPatch, read_bytes: int) -> None:
    monkeypatch.setattr(publish, "READ_BYTES", read_bytes)
    came = lines(b"one\ntwo", b"\n\nfo", b"ur\nfive")
    assert [line for batch in came for line in batch] == [b"one", b"two", b"", b"four", b"five"]


def test_what_can_be_read_at_once_comes_at_once() -> None:
    assert lines(b"1\n2\n3\n") == [[b"1", b"2", b"3"]]
    assert lines() == []


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "LINE_MAX_BYTES", 100)
    with pytest.raises(BadLine, match="a line is longer than 100 bytes"):
        lines(b"x" * 101)
