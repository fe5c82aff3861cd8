"""One attack against a server that runs.

python -m tests.hostile NAME HOST PORT PID SECONDS
"""

from __future__ import annotations

import sys

from tests.hostile.attack import Target, attacks


def main() -> None:
    """Run the attack that the arguments name."""
    name, host, port, pid, seconds = sys.argv[1:]
    attacks()[name].act(Target(host, int(port), int(pid), float(seconds)))


if __name__ == "__main__":
    main()
