"""YamlFile: a YAML file as plain values, with the line that each of them is on.

`${NAME}` in a text is the variable NAME of the environment, `${NAME:-text}` has a default, and `$${` is a plain `${`.
What came from the environment may be a secret: it is noted as one, and messages show a value as it was written.

The reader is PyYAML, which Spark's own pipelines need too. Its tree of nodes is what has the lines; two keys of the
same name, which it would pass over, are a problem here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from topics.pipeline.errors import PipelineError
from topics.pipeline.flows.secrets import Secrets

BYTES_MAX: Final = 1 << 20
VALUES_MAX: Final = 20_000
SHOWN_CHARS_MAX: Final = 80
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}")

Where = tuple[str | int, ...]


class YamlFile:
    """One file. `value` is what it holds, `problems` what is wrong with it, each with its line."""

    def __init__(self, file: Path, environ: Mapping[str, str], secrets: Secrets) -> None:
        self.file = file
        self.problems: list[tuple[int, str]] = []
        self._environ = environ
        self._secrets = secrets
        self._lines: dict[Where, int] = {}
        self._written: dict[Where, str] = {}
        self.value: Any = self._load()

    def problem(self, path: Where, text: str) -> None:
        """Note what is wrong with the value at a path."""
        while path and path not in self._lines:
            path = path[:-1]
        self.problems.append((self._lines.get(path, 1), text))

    def shown(self, path: Where, value: Any) -> str:
        """A value for a message, as it was written."""
        text = self._written.get(path)
        if text is None:
            return {dict: "a mapping", list: "a list", type(None): "empty"}.get(type(value), str(value))
        text = text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."
        return f'"{text}"'

    def from_environment(self, path: Where) -> bool:
        """Whether a text is a variable of the environment and nothing else."""
        return re.fullmatch(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", self._written.get(path, "")) is not None

    def raise_problems(self) -> None:
        """Raise what is wrong, if anything is, a line for each, in the order of the file."""
        if self.problems:
            raise PipelineError("\n".join(f"{self.file}:{line}: {text}" for line, text in sorted(self.problems)))

    def _load(self) -> Any:
        import yaml

        try:
            with self.file.open("rb") as stream:
                content = stream.read(BYTES_MAX + 1)
        except OSError as error:
            raise PipelineError(f"{self.file}: {error.strerror}") from None
        if len(content) > BYTES_MAX:
            raise PipelineError(f"{self.file} is larger than {BYTES_MAX:,} bytes; that is no file of pipelines")
        try:
            loader = yaml.SafeLoader(content.decode())
            node = loader.get_single_node()
            return None if node is None else self._value(loader, node, ())
        except UnicodeDecodeError as error:
            raise PipelineError(f"{self.file} is not UTF-8: {error.reason} at byte {error.start}") from None
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
            raise PipelineError(f"{self.file}:{line}: this is not YAML: {error.problem}") from None
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise PipelineError(f"{self.file}: this is not YAML: {str(error).splitlines()[0]}") from None

    def _value(self, loader: Any, node: Any, path: Where) -> Any:
        import yaml

        if len(self._lines) >= VALUES_MAX:
            raise PipelineError(f"{self.file} holds more than {VALUES_MAX:,} values")
        self._lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            return [self._value(loader, each, (*path, at)) for at, each in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(loader, node, path)
        self._written[path] = node.value
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float", "bool", "null"):
            return loader.construct_object(node)
        return self._filled(path, node.value)

    def _mapping(self, loader: Any, node: Any, path: Where) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, each in node.value:
            name = str(key.value)
            place = (*path, name)
            if name in found:
                first, self._lines[place] = self._lines[place], key.start_mark.line + 1
                self.problem(place, f"{dotted(place)} is there twice, for the first time on line {first}")
                continue
            found[name] = self._value(loader, each, place)
            self._lines[place] = key.start_mark.line + 1
        return found

    def _filled(self, path: Where, text: str) -> str:
        def fill(match: re.Match[str]) -> str:
            name = match[1]
            if name is None:
                return "${"
            own = self._environ.get(name)
            value: str | None = match[3] if own is None else own
            if value is None:
                self.problem(
                    path,
                    f"{dotted(path)} needs the variable {name} of the environment, which is not set: set it, leave "
                    f"this key out, or give a default, ${{{name}:-text}}",
                )
                return match[0]
            self._secrets.add(name, own)
            return value

        return _VARIABLE.sub(fill, text)


def dotted(path: Where) -> str:
    """A path for a message: `flows.orders.topics[2]`."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"
