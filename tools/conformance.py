"""Fails where `docs/conformance.md` names a test that does not exist.

The document is a table `| section | rule | test |`; a test cell holds one or more pytest node ids, separated by commas
or `<br>`. A parametrised test is named without its parameters. A row must name at least one test, because a rule
without one is a claim without evidence.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "conformance.md"
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_BETWEEN_TESTS = re.compile(r"<br\s*/?>|,")


class Collected:
    """A pytest plugin that remembers the node id of every test, parameters stripped."""

    def __init__(self) -> None:
        self.tests: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Called by pytest when all tests are known."""
        self.tests = {item.nodeid.partition("[")[0] for item in session.items}


def collect() -> set[str]:
    """Every test in the tree; ends the check where a test module cannot even be imported."""
    collected = Collected()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = pytest.main(
            ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), str(ROOT / "tests")],
            plugins=[collected],
        )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"{printed.getvalue()}\nconformance: the tests cannot be collected")
    return collected.tests


def rows(text: str) -> list[tuple[int, list[str]]]:
    """The line number and the named tests of each row of the tables in `text`."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip().startswith("|"):
            continue
        cells = [cell.strip() for cell in _CELL_BORDER.split(line.strip().strip("|"))]
        if cells[0].lower() == "section" or not cells[0].strip(":- "):
            continue
        tests = [test.strip().strip("`") for test in _BETWEEN_TESTS.split(cells[-1])] if len(cells) == 3 else []
        found.append((number, [test for test in tests if test]))
    return found


def problems(text: str, tests: set[str]) -> list[str]:
    """What is wrong with the table in `text`, one line each."""
    wrong = []
    for number, named in rows(text):
        if not named:
            wrong.append(f"line {number}: not three cells, or no test in the last one")
        wrong += [f"line {number}: {test} is not collected" for test in named if test not in tests]
    return wrong


def main() -> None:
    """Check the document and exit non-zero with a line for every problem."""
    if not TABLE.exists():
        sys.exit("conformance: docs/conformance.md is missing")
    text = TABLE.read_text(encoding="utf-8")
    wrong = problems(text, collect())
    if wrong:
        sys.exit("\n".join(f"docs/conformance.md, {line}" for line in wrong))
    print(f"conformance: every test named in {len(rows(text))} rows is collected")


if __name__ == "__main__":
    main()
