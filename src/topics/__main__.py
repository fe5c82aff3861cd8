"""`python -m topics` is the command `topics`."""

from topics.cli import app

if __name__ == "__main__":
    app(prog_name="topics")
