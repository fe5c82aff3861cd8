"""The check of `docs/conformance.md` finds what it is there to find (PROOF-5)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def conformance() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "tools" / "conformance.py"
    spec = importlib.util.spec_from_file_location("conformance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HEAD = "prose | with a bar\n\n| id | rule | tests |\n|---|:--|---|\n"
TESTS = {"tests/a.py::test_x", "tests/a.py::test_y", "tests/a.py::T::test_z"}
IDS = {"READ-1", "READ-12", "QUEUE-7"}


def wrong_rules(conformance: ModuleType, text: str) -> list[str]:
    return list(conformance.wrong_rules(conformance.rules(HEAD + text), TESTS))


def test_rules_that_name_collected_tests_pass(conformance: ModuleType) -> None:
    text = "| READ-1 | a \\| b | tests/a.py::test_x<br>`tests/a.py::test_y`, tests/a.py::T::test_z |\n"

    assert conformance.rules(HEAD + text) == [
        (5, "READ-1", ["tests/a.py::test_x", "tests/a.py::test_y", "tests/a.py::T::test_z"])
    ]
    assert wrong_rules(conformance, text) == []


@pytest.mark.parametrize("cell", ["tests/a.py::test_gone", "tests/a.py", "tests/a.py::test_x, tests/a.py::test_gone"])
def test_a_test_that_is_not_collected_is_a_problem(conformance: ModuleType, cell: str) -> None:
    wrong = wrong_rules(conformance, f"| READ-1 | rule | {cell} |\n")

    assert len(wrong) == 1
    assert wrong[0].startswith("docs/conformance.md:5: tests/a.py")
    assert wrong[0].endswith("is not collected")


@pytest.mark.parametrize("row", ["| READ-1 | rule | |", "| READ-1 | rule |", "| READ-1 | a | b | tests/a.py::test_x |"])
def test_a_rule_without_a_test_is_a_problem(conformance: ModuleType, row: str) -> None:
    assert wrong_rules(conformance, row) == ["docs/conformance.md:5: READ-1 is not three cells, or names no test"]


def test_an_id_that_is_given_twice_is_a_problem(conformance: ModuleType) -> None:
    row = "| READ-1 | rule | tests/a.py::test_x |\n"

    assert wrong_rules(conformance, row + row) == ["docs/conformance.md:6: READ-1 is given twice"]


@pytest.mark.parametrize("id", ["READ", "Read-1", "READ-x", "READ 1"])
def test_an_id_of_another_form_is_a_problem(conformance: ModuleType, id: str) -> None:
    wrong = wrong_rules(conformance, f"| {id} | rule | tests/a.py::test_x |\n")

    assert wrong == [f"docs/conformance.md:5: {id!r} is not an id such as READ-8"]


def test_a_cited_id_that_does_not_exist_is_a_problem(conformance: ModuleType) -> None:
    text = "# READ-1, QUEUE-7\n# see READ-2 to READ-12\n"  # READ-2: a rule of the product, and none of IDS

    assert list(conformance.wrong_citations("src/a.py", text, IDS)) == ["src/a.py:2: READ-2 is not a rule"]


@pytest.mark.parametrize("text", ["UTF-8", "SHA-256", "THREAD-1", "RFC 9112 \u00a72.2", "decisions.md", "an issue"])
def test_what_only_looks_like_a_citation_is_none(conformance: ModuleType, text: str) -> None:
    assert list(conformance.wrong_citations("src/a.py", text, IDS)) == []


# With a bar that is taken out again, because this file is searched as well.
FOREIGN = [
    "API \u00a710.4",
    "DESIGN \u00a75",
    "RFC 9112 \u00a72.2, \u00a73",
    "decision| 37",
    "Decisions| 9, 39",
    "Issue| 3",
    "document| 002",
]


@pytest.mark.parametrize("text", [text.replace("|", "") for text in FOREIGN])
def test_a_citation_of_a_document_that_is_not_here_is_a_problem(conformance: ModuleType, text: str) -> None:
    wrong = list(conformance.wrong_citations("src/a.py", f"\n({text})", IDS))

    assert len(wrong) == 1
    assert wrong[0].startswith("src/a.py:2: ")
    assert wrong[0].endswith("cites a document that is not in the repository")


def test_everything_that_may_cite_is_searched(conformance: ModuleType) -> None:
    searched = {str(path.relative_to(conformance.ROOT)) for path in conformance.files()}

    assert {"README.md", "docs/api.md", "tools/conformance.py", "tests/unit/docs/test_conformance.py"} <= searched
    assert {name.partition("/")[0] for name in searched} >= {"src", "bench", "examples"}
