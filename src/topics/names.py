"""The names of topics and routers (TOPIC-1, ROUTER-5).

A name is 1 to 255 ASCII characters that start with a letter or a digit and go on with letters, digits and `. _ : -`; a
router's name may hold `>` as well (`orders->audit`). Names are case-sensitive and compared byte for byte, and they are
checked here before anything is keyed by them.

Every request checks a name, so names that passed are remembered. The memory is bounded and simply emptied when full: a
client that invents names costs a regular expression per name and no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from topics.errors import InvalidRequest

TOPIC_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
ROUTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"
NAME_CHARS_MAX = 255
REMEMBERED_NAMES_MAX = 16_384


def _checker(kind: str, rule: str, seen: set[str]) -> Callable[[str], None]:
    """A function that raises `InvalidRequest` for a name that breaks the rule; `seen` are names that passed."""
    # fullmatch, because `$` alone also matches before a trailing newline.
    matches = re.compile(rule).fullmatch

    def check(name: str) -> None:
        if name in seen:
            return
        if matches(name) is None:
            shown = printable_name(name)
            raise InvalidRequest(f'"{shown}" is not a {kind} name; it must match {rule}', name=shown, rule=rule)
        if len(seen) >= REMEMBERED_NAMES_MAX:
            seen.clear()
        seen.add(name)

    return check


_topics_seen: set[str] = set()
_routers_seen: set[str] = set()
check_topic_name = _checker("topic", TOPIC_NAME, _topics_seen)
check_router_name = _checker("router", ROUTER_NAME, _routers_seen)


def printable_name(name: str) -> str:
    """`name` as an error may repeat it, whether or not it was checked.

    A name out of a path may hold lone surrogates, which no JSON encoder takes, and may be as long as a request head.
    """
    shown = name[: NAME_CHARS_MAX + 1].encode("utf-8", "backslashreplace").decode("utf-8")
    return shown if len(name) <= NAME_CHARS_MAX + 1 else shown + "..."
