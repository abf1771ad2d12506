"""`python -m aaiclick_queue` is `aaiclick-queue`."""

from __future__ import annotations

import sys


def main() -> None:
    """The program; a probe that is asked every few seconds is answered before the commands are imported."""
    if sys.argv[1:2] == ["health"]:
        from .health import answered

        code = answered(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    from .cli import main as program

    program()


if __name__ == "__main__":
    main()
