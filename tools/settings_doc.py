"""Writes `docs/settings.md` from the table of settings, so that the page is never out of date."""

from __future__ import annotations

from pathlib import Path

from topics import settings

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

_HEAD = """\
# Settings

Written by `tools/settings_doc.py` from `src/topics/settings.py`.

Every setting is an environment variable and a flag of `topics serve`; the flag wins. A variable that is set but empty
counts as not set. A value that is not allowed stops the server with a line that says what is allowed; a `TOPICS_*`
variable that is not in this table causes a warning at the start. An error about a limit names it: the variable's name
in lower case without `TOPICS_`. `TOPICS_URL`, `TOPICS_TOKEN`, `TOPICS_PROFILE`, `TOPICS_PROFILES` and `TOPICS_NODE` are
not settings of the server: the [commands](cli.md#which-server) that talk to one read them.

| variable | flag | default | meaning | allowed |
|---|---|---|---|---|
| `TOPICS_API_KEYS` | none | none | The keys, see [auth.md](auth.md). | |
"""


def render() -> str:
    """The text of the document."""
    lines = []
    for setting in settings.table():
        flag = settings.flag(setting)
        default = setting.default
        if isinstance(default, bool):
            flag, default = f"{flag}` / `--no-{flag.removeprefix('--')}", str(default).lower()
        shown = "none" if default in (None, ()) else f"`{default}`"
        meaning, allowed = setting.metadata["doc"], setting.metadata["allowed"]
        lines.append(f"| `{settings.variable(setting)}` | `{flag}` | {shown} | {meaning} | {allowed} |\n")
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    DOCUMENT.write_text(render(), encoding="utf-8")
