"""`python -m topics` is the command `topics`, and so is the script that an install makes."""

import os
import sys


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:] == ["serve"]:
        from topics.serve import serve

        sys.exit(serve({}))
    if sys.argv[1:] == ["--version"]:
        from topics import __version__

        sys.stdout.write(f"topics {__version__}\n")
        return
    from topics.cli import app

    if "_TOPICS_COMPLETE" in os.environ:
        # A shell asks what could come next.
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    app(prog_name="topics")


if __name__ == "__main__":
    main()
