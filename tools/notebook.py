"""Runs the cells of a notebook in order and keeps what they show.

`python tools/notebook.py` does so for `examples/notebook.ipynb` with a server of its own, and writes the outputs into
it. The test of the notebook runs the same cells and compares: so what a reader sees there is what happens.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "notebook.ipynb"


def run(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, as a notebook keeps them, without the numbers of executions."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_outputs("".join(cell["source"]), namespace) for cell in cells]


def _outputs(source: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    shown: Any = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), namespace)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if shown is not None:
        data = {"text/plain": _lines(repr(shown))}
        if hasattr(shown, "_repr_svg_"):
            data["image/svg+xml"] = _lines(shown._repr_svg_())
        outputs.append({"data": data, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Write the outputs into the notebook."""
    from topics.testing import ServerProcess

    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as directory, ServerProcess(Path(directory) / "data") as server:
        os.environ["TOPICS_URL"] = server.url
        with contextlib.chdir(directory):
            outputs = run(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, found) in enumerate(zip(code, outputs, strict=True), 1):
        cell["execution_count"] = number
        results = ({**one, "execution_count": number} if "data" in one else one for one in found)
        cell["outputs"] = list(results)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
