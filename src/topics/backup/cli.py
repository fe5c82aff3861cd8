"""`topics backup` and `topics restore` on the command line: a failure is one line and an exit code.

Each command imports what it needs when it runs, because `topics serve` goes through the same parser of flags.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topics.commands.failures import EXIT_FAILED, EXIT_INTERRUPTED, CommandError
from topics.commands.link import ProfileName, TokenFile, Url
from topics.commands.link import target as chosen_server
from topics.commands.table import counted

if TYPE_CHECKING:
    from topics.backup.manifest import Manifest
    from topics.backup.source import Source
    from topics.backup.taking import Report


def backup(
    target: Annotated[
        Path,
        typer.Argument(help="A directory of backups, which share what is the same; or a file, .tar or .tar.gz."),
    ],
    keep: Annotated[
        int | None, typer.Option(help="Remove older backups of the directory, all but so many.", min=1)
    ] = None,
    url: Url = None,
    profile: ProfileName = None,
    token_file: TokenFile = None,
) -> None:
    """Back up a running server, as of one moment.

    Into a directory only segments are copied that its last backup does not have. A backup is checked before it gets
    its name. The exit code is 0 if all is well, and 1 if there is no new backup or the server's own files are damaged.
    """
    from topics.backup import archive
    from topics.backup.source import Source

    with _one_line("backup"):
        source = Source(chosen_server(url, profile, token_file))
        damaged: list[str] = []

        def report(line: str) -> None:
            damaged.extend([line] * line.startswith("DAMAGE"))
            typer.echo(f"topics backup: {line}", err=True)

        began = time.monotonic()
        try:
            path, taken = (_to_file if archive.is_archive(target) else _to_directory)(source, target, keep, report)
        finally:
            source.end()
            source.close()
        _summary(path, taken, source.received_bytes, time.monotonic() - began)
    sys.exit(1 if damaged else 0)


def _to_directory(source: Source, target: Path, keep: int | None, report: Report) -> tuple[Path, Manifest]:
    from topics.backup.place import Place
    from topics.backup.taking import Taking

    place = Place(target)
    with place.locked() as partial:
        taken = Taking(source, partial, place.newest(), report).take()
        path = place.publish(partial, taken)
        if keep is not None:
            place.rotate(keep)
    return path, taken


def _to_file(source: Source, target: Path, keep: int | None, report: Report) -> tuple[Path, Manifest]:
    from topics.backup import archive
    from topics.backup.place import partial_beside
    from topics.backup.taking import Taking

    if keep is not None:
        raise CommandError("--keep is for a directory of backups, and this is one file")
    partial = partial_beside(target)
    try:
        taken = Taking(source, partial, None, report).take()
        archive.pack(partial, taken, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target, taken


def _summary(path: Path, taken: Manifest, received: int, seconds: float) -> None:
    from topics.backup.manifest import time_text

    typer.echo(
        f"{path}: {counted(taken.topics, 'topic')} as of {time_text(taken.taken_ts)}, {len(taken.files)} files,"
        f" {taken.size_bytes:,} bytes; {received:,} bytes were copied, in {seconds:.1f} s"
    )


def restore(
    source: Annotated[
        Path, typer.Argument(help="A backup, a directory of backups (the last one is restored), or an archive.")
    ],
    target: Annotated[Path, typer.Argument(help="The data directory to make; it must be empty or not exist.")],
    until: Annotated[
        str | None,
        typer.Option(
            help="Leave out records that were written after this time, such as 2026-11-17T09:30:00Z; "
            "of several backups, the first one after it is restored."
        ),
    ] = None,
) -> None:
    """Make a data directory of a backup.

    Every topic goes on far above the seqs that may have been handed out since the backup; a reader gets a tombstone
    with the reason "restore" for everything in between. The server must be started on the new directory afterwards.
    """
    from topics.backup.manifest import parse_time, time_text
    from topics.backup.restore import restore as restore_backup

    with _one_line("restore"):
        until_ts = None if until is None else parse_time(until)
        restored = restore_backup(source, target, until_ts)
        taken_ts = restored.manifest.taken_ts
        if until_ts is not None and until_ts > taken_ts:
            typer.echo(f"topics restore: the last backup is from before that, {time_text(taken_ts)}", err=True)
        held = f"{counted(restored.topics, 'topic')} and {counted(restored.records, 'record')}"
        left_out = f"; left out, as written later: {restored.left_out:,}" if until_ts is not None else ""
        typer.echo(f"{target}: {held} as of {time_text(taken_ts)}{left_out}")


@contextlib.contextmanager
def _one_line(command: str) -> Iterator[None]:
    """Report a failure in one line. What is made meanwhile is for its owner alone, as a data directory is."""
    mask = os.umask(0o077)
    try:
        yield
    except CommandError as error:
        message, code = str(error), error.exit_code
    except OSError as error:
        message, code = f"{error.filename or 'the backup'}: {error.strerror or error}", EXIT_FAILED
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    else:
        return
    finally:
        os.umask(mask)
    typer.echo(f"topics {command}: {message}", err=True)
    raise typer.Exit(code)
