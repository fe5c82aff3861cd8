"""The check of `docs/conformance.md` finds what it is there to find."""

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


HEAD = "prose | with a bar\n\n| section | rule | test |\n|---|:--|---|\n"


def test_rows_that_name_collected_tests_pass(conformance: ModuleType) -> None:
    text = HEAD + "| API §1 | a \\| b | tests/a.py::test_x<br>`tests/a.py::test_y`, tests/a.py::T::test_z |\n"

    assert conformance.rows(text) == [(5, ["tests/a.py::test_x", "tests/a.py::test_y", "tests/a.py::T::test_z"])]
    assert conformance.problems(text, {"tests/a.py::test_x", "tests/a.py::test_y", "tests/a.py::T::test_z"}) == []


@pytest.mark.parametrize("cell", ["tests/a.py::test_gone", "tests/a.py", "tests/a.py::test_x, tests/a.py::test_gone"])
def test_a_test_that_is_not_collected_is_a_problem(conformance: ModuleType, cell: str) -> None:
    wrong = conformance.problems(HEAD + f"| API §1 | rule | {cell} |\n", {"tests/a.py::test_x"})

    assert len(wrong) == 1
    assert wrong[0].startswith("line 5: tests/a.py")


@pytest.mark.parametrize("row", ["| API §1 | rule | |", "| API §1 | rule |", "| API §1 | a | b | tests/a.py::test_x |"])
def test_a_row_without_a_test_is_a_problem(conformance: ModuleType, row: str) -> None:
    assert conformance.problems(HEAD + row, {"tests/a.py::test_x"}) == [
        "line 5: not three cells, or no test in the last one"
    ]
