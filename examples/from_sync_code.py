"""Code without an event loop: `delay` and `get`, with the worker as a program of its own.

Run it: python examples/from_sync_code.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aaiclick_queue import task


@task
def word_count(text: str) -> int:
    return len(text.split())


def main() -> None:
    # In another terminal: aaiclick-queue worker -A from_sync_code
    command = [sys.executable, "-m", "aaiclick_queue", "worker", "-A", "from_sync_code", "-c", "4"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent)
    try:
        handle = word_count.delay("a queue is a line")
        count = handle.get(timeout=30)
        print(f"{count} words")
        assert count == 5
        assert handle.ready()

        later = word_count.apply_async(("in half a second",), countdown=0.5, priority=9)
        assert later.get(timeout=30) == 4
        print("apply_async takes options, by Celery's names too")
    finally:
        worker.terminate()
        code = worker.wait(timeout=30)
    print(f"the worker finished and left with exit code {code}")
    assert code == 0


if __name__ == "__main__":
    main()
