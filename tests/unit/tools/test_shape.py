"""The check of the code's shape finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import shape


def _package(root: Path, **modules: str) -> Path:
    (root / "p").mkdir()
    (root / "p" / "__init__.py").write_text('"""A package."""\n')
    for name, text in modules.items():
        (root / "p" / f"{name}.py").write_text(text)
    return root


def test_cycle_of_four_is_found_even_where_one_import_is_for_types_alone(tmp_path: Path) -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import A\n"
    root = _package(tmp_path, a="from p import b\n", b="import p.c\n", c="from p.d import D\n", d=typed)

    (problem,) = shape.problems(root)
    assert problem == "4 modules import each other in a circle: p.a, p.b, p.c, p.d"


def test_cycle_of_three_and_a_diamond_pass(tmp_path: Path) -> None:
    root = _package(
        tmp_path, a="from p import b, c\n", b="from p import d\n", c="from p import d\n", d="from p import b\n"
    )

    assert shape.problems(root) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = 1\n" * 451, "p/a.py has 451 lines"), ("def f():\n" + "    x = 1\n" * 60, "p/a.py:1 f has 61 lines")],
)
def test_long_module_and_long_function_are_found(tmp_path: Path, text: str, said: str) -> None:
    (problem,) = shape.problems(_package(tmp_path, a=text))

    assert problem.startswith(said)


def test_package_without_a_sentence_is_found(tmp_path: Path) -> None:
    root = _package(tmp_path)
    (root / "p" / "__init__.py").write_text("")

    assert shape.problems(root) == ["p/__init__.py does not say what the package guarantees"]
