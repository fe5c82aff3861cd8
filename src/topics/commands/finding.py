"""Finding: one thing that `topics doctor` has looked at: how it is, and what to change where it is not well."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "note", "bad"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`note` is worth knowing, `bad` has to be changed; `advice` says how."""

    check: str
    level: Level
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """It is well."""
    return Finding(check, "ok", found)


def note(check: str, found: str, advice: str) -> Finding:
    """It works, and could be better."""
    return Finding(check, "note", found, advice)


def bad(check: str, found: str, advice: str) -> Finding:
    """It does not work, or data is at risk."""
    return Finding(check, "bad", found, advice)
