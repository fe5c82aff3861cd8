"""`python -m topics` is the command `topics`, and so is the script that an install makes."""

import sys


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:] == ["serve"]:
        from topics.serve import serve

        sys.exit(serve({}))
    from topics.cli import app

    app(prog_name="topics")


if __name__ == "__main__":
    main()
