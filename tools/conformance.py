"""Fails where `docs/conformance.md` is wrong, or where code, tests or documents cite what is not in this repository.

The document holds tables `| id | rule | tests |`. An id is a subject and a number (`READ-8`); a cell of tests holds one
or more pytest node ids, separated by commas or `<br>`. A parametrised test is named without its parameters. A rule must
name at least one test, because a rule without one is a claim without evidence.

Ids are searched in every source file and document. Only subjects of the tables are looked for, so that names such as
UTF-8 mean nothing here. What may not be cited are sections, decisions and issues by number: they belong to documents
that a reader of this repository does not have. RFCs may be.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "conformance.md"
SEARCHED = ("src", "tests", "docs", "bench", "tools", "examples")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_BETWEEN_TESTS = re.compile(r"<br\s*/?>|,")
_ID = re.compile(r"([A-Z]+)-[1-9]\d*")
_FOREIGN = re.compile(r"(?<!RFC \d{4} )\u00a7|\b(?:decisions?|issues?) \d|\bdocuments? 00\d", re.IGNORECASE)


class Rule(NamedTuple):
    """A row of a table: where it is, its id and the tests that it names."""

    line: int
    id: str
    tests: list[str]


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
            ["--collect-only", "-qq", "-p", "no:cacheprovider", "--rootdir", str(ROOT), str(ROOT / "tests")],
            plugins=[collected],
        )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"{printed.getvalue()}\nconformance: the tests cannot be collected")
    return collected.tests


def rules(text: str) -> list[Rule]:
    """The rules in the tables of `text`; a row that is not three cells is a rule without tests."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in _CELL_BORDER.split(line.strip().strip("|"))]
        if cells[0] == "id" or not cells[0].strip(":- "):
            continue
        tests = [test.strip().strip("`") for test in _BETWEEN_TESTS.split(cells[-1])] if len(cells) == 3 else []
        found.append(Rule(number, cells[0], [test for test in tests if test]))
    return found


def wrong_rules(found: list[Rule], tests: set[str]) -> Iterator[str]:
    """What is wrong with the rules themselves, a line for each problem."""
    seen = set()
    for rule in found:
        where = f"docs/conformance.md:{rule.line}"
        if not _ID.fullmatch(rule.id):
            yield f"{where}: {rule.id!r} is not an id such as READ-8"
        if rule.id in seen:
            yield f"{where}: {rule.id} is given twice"
        seen.add(rule.id)
        if not rule.tests:
            yield f"{where}: {rule.id} is not three cells, or names no test"
        yield from (f"{where}: {test} is not collected" for test in rule.tests if test not in tests)


def wrong_citations(name: str, text: str, ids: set[str]) -> Iterator[str]:
    """The citations in one file that lead nowhere, a line for each."""
    subjects = "|".join(sorted({id.partition("-")[0] for id in ids}))
    cited = re.compile(rf"\b(?:{subjects})-\d+\b")
    for number, line in enumerate(text.splitlines(), start=1):
        yield from (f"{name}:{number}: {id} is not a rule" for id in cited.findall(line) if id not in ids)
        foreign = _FOREIGN.search(line)
        if foreign:
            yield f"{name}:{number}: {foreign[0]!r} cites a document that is not in the repository"


def files() -> Iterator[Path]:
    """Every source file and document of the project."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in SEARCHED:
        yield from sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md"})


def main() -> None:
    """Check rules and citations, and exit non-zero with a line for every problem."""
    if not TABLE.exists():
        sys.exit("conformance: docs/conformance.md is missing")
    found = rules(TABLE.read_text(encoding="utf-8"))
    ids = {rule.id for rule in found}
    wrong = list(wrong_rules(found, collect()))
    for path in files():
        wrong += wrong_citations(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"), ids)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"conformance: {len(found)} rules, every one with tests that are collected, and every citation leads to one")


if __name__ == "__main__":
    main()
