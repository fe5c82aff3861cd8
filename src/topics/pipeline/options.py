"""The options of `topics pipeline archive` that say what its lake is like, as the command line takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Format = Annotated[str, typer.Option(help="delta, iceberg or parquet.")]
Catalog = Annotated[
    str | None, typer.Option(help="Of Iceberg tables: an address or a name; by default catalog.db in the lake.")
]
Namespace = Annotated[str, typer.Option(help="Of Iceberg tables, in their catalog.")]
Checkpoint = Annotated[
    Path | None, typer.Option(help="The directory of the state; by default _checkpoint beside the tables.")
]
Typed = Annotated[
    bool, typer.Option("--typed", help="Also keep a table per topic, typed/TOPIC, with columns out of the JSON.")
]
Compact = Annotated[bool, typer.Option("--compact", help="Merge small files at the end; without topics, do only that.")]
FollowDeletes = Annotated[
    bool, typer.Option("--follow-deletes", help="Erase from the tables what is deleted on the server.")
]
