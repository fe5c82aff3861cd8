"""The names of topics and routers (TOPIC-1, ROUTER-5).

A name is 1 to 255 ASCII characters that start with a letter or a digit and go on with letters, digits and `. _ : -`; a
router's name may hold `>` as well (`orders->audit`). Names are case-sensitive and compared byte for byte, and they are
checked here before anything is keyed by them.

Every request checks a name, so names that passed are remembered. The memory is bounded and simply emptied when full: a
client that invents names costs a regular expression per name and no more.
"""

from __future__ import annotations

import re

from topics.errors import InvalidRequest

TOPIC_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
ROUTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"
NAME_CHARS_MAX = 255
REMEMBERED_NAMES_MAX = 16_384

# fullmatch, because `$` alone also matches before a trailing newline.
_matches_topic = re.compile(TOPIC_NAME).fullmatch
_matches_router = re.compile(ROUTER_NAME).fullmatch
_topics_seen: set[str] = set()
_routers_seen: set[str] = set()


def check_topic_name(name: str) -> None:
    """Return if `name` may name a topic, raise `InvalidRequest` otherwise."""
    if name in _topics_seen:
        return
    if _matches_topic(name) is None:
        raise _refusal("topic", name, TOPIC_NAME)
    if len(_topics_seen) >= REMEMBERED_NAMES_MAX:
        _topics_seen.clear()
    _topics_seen.add(name)


def check_router_name(name: str) -> None:
    """Return if `name` may name a router, raise `InvalidRequest` otherwise."""
    if name in _routers_seen:
        return
    if _matches_router(name) is None:
        raise _refusal("router", name, ROUTER_NAME)
    if len(_routers_seen) >= REMEMBERED_NAMES_MAX:
        _routers_seen.clear()
    _routers_seen.add(name)


def printable_name(name: str) -> str:
    """`name` as an error may repeat it, whether or not it was checked.

    A name out of a path may hold lone surrogates, which no JSON encoder takes, and may be as long as a request head.
    """
    shown = name[: NAME_CHARS_MAX + 1].encode("utf-8", "backslashreplace").decode("utf-8")
    return shown if len(name) <= NAME_CHARS_MAX + 1 else shown + "..."


def _refusal(kind: str, name: str, rule: str) -> InvalidRequest:
    shown = printable_name(name)
    return InvalidRequest(f'"{shown}" is not a {kind} name; it must match {rule}', name=shown, rule=rule)
