"""Heap: the memory that the allocator holds free, given back to the system without holding up whoever allocates.

`malloc_trim` gives it back in one go, and an allocation meanwhile waits: 25 ms for 300 MiB. So the free memory is first
taken from the allocator in pieces, as anybody could who allocates; then the system empties the pieces, which takes as
long, but nobody else knows them; then the allocator gets them back. For `malloc_trim` remains what no piece fits in.

Each thread has a heap of its own, so `take` and `put_back` belong on the thread whose heap it is: the loop's. `empty`
and `trim` take their time without the interpreter's lock, and belong on another one.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from typing import Final, NamedTuple

PIECES_BYTES: Final = (4 << 20, 1 << 20, 192 << 10, 48 << 10)
"""The large ones first: each takes about ten microseconds. What is read from a socket leaves holes of 250 KB."""
MISSES_MAX: Final = 8
"""After so many pieces in a row with nothing to give back, smaller ones are tried."""
TOGETHER: Final = 100
"""How many pieces are taken in one go: about a millisecond."""
_MADV_DONTNEED: Final = 4


class Piece(NamedTuple):
    """Memory that was taken from the allocator, and the whole pages in it."""

    address: int
    pages_address: int
    pages_bytes: int


class Heap:
    """The allocator of this process; raises OSError or AttributeError where it is not the one of glibc."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = library.malloc_trim
        self._malloc = library.malloc
        self._malloc.restype = ctypes.c_void_p
        self._malloc.argtypes = [ctypes.c_size_t]
        self._free = library.free
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p]
        self._madvise = library.madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._mincore = library.mincore
        self._mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]

    def take(self, most_bytes: int) -> Iterator[list[Piece]]:
        """Take up to so much of what is free, some pieces at a time; no memory is touched for it."""
        taken: list[Piece] = []
        left = most_bytes
        for size in PIECES_BYTES:
            misses = 0
            while left >= size and misses < MISSES_MAX:
                piece = self._take_piece(size)
                if piece is None:
                    break
                taken.append(piece)
                left -= size
                misses = 0 if self._is_there(piece) else misses + 1
                if len(taken) == TOGETHER:
                    yield taken
                    taken = []
        yield taken

    def _take_piece(self, size: int) -> Piece | None:
        address: int | None = self._malloc(size)
        if address is None:
            return None
        page = mmap.PAGESIZE
        first = -(-address // page) * page
        return Piece(address, first, (address + size) // page * page - first)

    def _is_there(self, piece: Piece) -> bool:
        """Whether any of it is in memory, or it is only an address."""
        pages = ctypes.create_string_buffer(piece.pages_bytes // mmap.PAGESIZE)
        return self._mincore(piece.pages_address, piece.pages_bytes, pages) == 0 and b"\1" in pages.raw

    def empty(self, pieces: list[Piece]) -> None:
        """Give what these pieces hold back to the system."""
        for piece in pieces:
            self._madvise(piece.pages_address, piece.pages_bytes, _MADV_DONTNEED)

    def put_back(self, pieces: list[Piece]) -> None:
        """Let the allocator have them again."""
        for piece in pieces:
            self._free(piece.address)

    def trim(self) -> None:
        """Give back whatever else is free, in one go."""
        self._trim(0)
