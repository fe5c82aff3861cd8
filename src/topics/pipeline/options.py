"""The options that several commands of pipelines take, and those that say what a lake is like: each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topics.client.operations.pipelines import PIPELINES_TOPIC

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

Master = Annotated[
    str | None,
    typer.Option(help="Where Spark runs: local[N] (by default N is 2), spark://host:port, or any other cluster."),
]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="A setting of Spark, NAME=VALUE; may be repeated.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what Spark logs.")]
FlowName = Annotated[str | None, typer.Option("--name", help="What it is called in its reports.", show_default=False)]
Reports = Annotated[bool, typer.Option("--report/--no-report", help=f"Report to the topic {PIPELINES_TOPIC}.")]
Once = Annotated[bool, typer.Option("--once", help="Stop when everything that exists now is done.")]
Interval = Annotated[str, typer.Option(help="How often a continuous pipeline looks for more.")]
OffsetsMax = Annotated[int | None, typer.Option("--max-offsets", help="Most records of one batch.", min=1)]
Staging = Annotated[str | None, typer.Option(help="Where to stage records, if not in the state: s3://bucket/staging.")]
