"""Fails where the code outgrows the shape that a reader can hold in mind.

- No import cycle of more than 3 modules, imports for types alone included: import-linter checks layers, and a cycle
  inside one layer is invisible to it.
- No module over 450 lines, no function over 60.
- Every package says in its `__init__.py` what it guarantees and what it may not know.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CYCLE_MAX = 3
MODULE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60


def dotted(path: Path) -> str:
    """The name of the module in a file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Which modules each module imports, wherever the import is."""
    graph: dict[str, set[str]] = {}
    for name, tree in trees.items():
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                inside = (f"{node.module}.{alias.name}" for alias in node.names)
                found |= {each if each in trees else node.module for each in inside}
        graph[name] = (found & trees.keys()) - {name}
    return graph


def cycles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """The sets of modules that reach each other (Tarjan's strongly connected components), those of one left out."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            found = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(found) > 1:
                yield sorted(found)

    for name in graph:
        if name not in order:
            yield from visit(name)


def problems(source: Path) -> list[str]:
    """What is out of shape below `source`, one line each."""
    texts = {path.relative_to(source): path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))}
    trees = {path: ast.parse(text, filename=str(path)) for path, text in texts.items()}
    wrong = [
        f"{len(cycle)} modules import each other in a circle: {', '.join(cycle)}"
        for cycle in cycles(imports({dotted(path): tree for path, tree in trees.items()}))
        if len(cycle) > CYCLE_MAX
    ]
    for where, tree in trees.items():
        lines = len(texts[where].splitlines())
        if lines > MODULE_LINES_MAX:
            wrong.append(f"{where} has {lines} lines, at most {MODULE_LINES_MAX} are allowed")
        if where.name == "__init__.py" and ast.get_docstring(tree) is None:
            wrong.append(f"{where} does not say what the package guarantees")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    wrong.append(f"{where}:{node.lineno} {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}")
    return wrong


if __name__ == "__main__":
    found = problems(ROOT / "src")
    if found:
        sys.exit("\n".join(f"shape: {line}" for line in found))
    print("shape: no long cycle, module or function")
