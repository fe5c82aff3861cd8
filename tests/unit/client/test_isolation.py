"""The library stands alone: no server, no engine, and nothing that a server would have to wait for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def loaded(code: str) -> set[str]:
    """The modules that are loaded after some code ran in a process of its own."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(ran.stdout.split())


def test_the_library_loads_neither_server_nor_engine() -> None:
    """CLIENT-10."""
    found = loaded("from topics import *\nfrom topics import Client, AsyncClient\nClient('http://h')")
    foreign = (
        "topics.server",
        "topics.engine",
        "topics.storage",
        "uvloop",
        "h2",
        "typer",
        "rich",
        "httpx",
        "websockets",
    )
    assert not {name for name in found if name.startswith(foreign)}


def test_the_package_alone_loads_nothing() -> None:
    """CLIENT-10: a server that starts does not wait for the library."""
    found = loaded("import topics")
    assert not {name for name in found if name.startswith(("topics.client", "httptools", "msgspec", "asyncio", "ssl"))}


def test_every_name_can_be_imported() -> None:
    import topics

    for name in topics.__all__:
        assert getattr(topics, name).__name__ == name
        assert name in dir(topics)
    with pytest.raises(AttributeError, match="no attribute 'wibble'"):
        _ = topics.wibble


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_has_keys_of_its_own() -> None:
    """CLIENT-9: two writes under one key would be one write."""
    code = """
import os
from topics.client.operations import identity
from topics.client.operations.identity import Lanes
from topics.client.operations.unique_names import next_key
next_key()
identity.KEYED_WRITES = 0
lanes = Lanes()
lanes.take()
lanes.give(lanes.take())
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, f"{next_key()} {lanes.take().producer_id}".encode())
    os._exit(0)
os.wait()
key, producer_id = os.read(reader, 200).decode().split()
assert key != next_key()
assert producer_id != lanes.take().producer_id
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
