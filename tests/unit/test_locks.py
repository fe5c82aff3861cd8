"""The locks: exact versions with hashes, no address of any index, one version of a thing in all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {lock.stem: lock.read_text() for lock in sorted((ROOT / "requirements").glob("*.txt"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _pins(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+==[^ ]+)", LOCKS[lock], re.MULTILINE))


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_exact_and_hashed_and_no_host_is_named(lock: str) -> None:
    for requirement in LOCKS[lock].replace("\\\n", " ").splitlines():
        assert re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", requirement), requirement
        assert "/" not in requirement


def test_the_locks_cover_what_the_project_asks_for() -> None:
    def locked(lock: str) -> set[str]:
        return {pin.partition("==")[0] for pin in _pins(lock)}

    extras = PROJECT["project"]["optional-dependencies"]
    server = _names(PROJECT["project"]["dependencies"])

    assert server <= locked("server")
    assert server | _names(extras["dev"]) <= locked("dev")
    assert server | _names(extras["dev"]) | _names(extras["spark"]) <= locked("all")
    for group, requirements in PROJECT["dependency-groups"].items():
        assert _names(requirements) <= locked(group)


def test_a_package_has_the_same_version_in_every_lock() -> None:
    assert _pins("server") <= _pins("dev") <= _pins("all")
    shared = {pin.partition("==")[0] for pin in _pins("build")} & {pin.partition("==")[0] for pin in _pins("all")}
    assert {pin for pin in _pins("build") if pin.partition("==")[0] in shared} <= _pins("all")


def test_the_build_backend_is_the_one_in_the_lock() -> None:
    for backend in PROJECT["build-system"]["requires"]:
        assert backend in _pins("build")
