"""What a type checker sees of the library: the type of the data, and whether a loss may come instead of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import msgspec
from topics import AsyncClient, Client


class Order(msgspec.Struct):
    id: int


client = Client()
reveal_type(next(client.topic("t", type=Order).read()).data)
reveal_type(next(client.topic("t", type=Order).follow(on_loss="yield")))
reveal_type(next(client.topic("t").read(from_seq=3, match="x")))
reveal_type(next(client.consumer("c", ["t"], type=Order)))
reveal_type(next(client.consumer("c", ["t"], on_loss="yield")))
reveal_type(client.topic("t", type=Order).claim()[0].data)


async def main(client: AsyncClient) -> None:
    reveal_type(await anext(client.topic("t", type=Order).follow()))
    reveal_type(await client.topic("t").write(1))


client.topic("t", type=Order).write("no order")
client.topic("t").read(wibble=1)
"""
EXPECTED = [
    "Order", "Record[Order] | Tombstone", "Record[Any]", "Record[Order]", "Record[Any] | Tombstone", "Order",
    "Record[Order]", "Written",
]  # fmt: skip


def test_the_type_of_data_and_of_a_loss_is_known(tmp_path: Path) -> None:
    """CLIENT-3, CLIENT-5: the package is typed, and a loss is in the type where it can come."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=tmp_path,
    )
    revealed = re.findall(r'Revealed type is "(.*)"', ran.stdout)
    assert [re.sub(r"[\w.]+\.(\w+)", r"\1", each) for each in revealed] == EXPECTED, ran.stdout + ran.stderr
    errors = [line for line in ran.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 2, ran.stdout
    assert "arg-type" in errors[0]
    assert "wibble" in ran.stdout
