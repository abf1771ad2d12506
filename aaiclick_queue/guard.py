"""The guard of child processes: when the worker is gone, however that was, it ends what their tasks have started.

A child dies with its worker by itself; programs that it had started do not, and a worker that was killed cannot end
them. So a shell waits for the end of a pipe that only the worker holds, and then kills the groups it was told of.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

# The last line is the list as it is now. A moment before it acts, so that children can go by themselves.
_WAIT_AND_KILL = """
trap '' TERM INT HUP QUIT
groups=
while read -r line; do groups=$line; done
[ -n "$groups" ] || exit 0
sleep 1
# -s KILL: the one form that every shell takes with a group.
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
exit 0
"""


class Guard:
    """Knows the process groups of a worker's children, and lives as long as there are any."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """A child has started, in a process group of its own."""
        self._groups.add(group)
        self._tell()

    def forget(self, group: int) -> None:
        """It is gone, and what it had started with it."""
        self._groups.discard(group)
        if self._groups:
            self._tell()
        elif self._shell is not None:
            shell, self._shell = self._shell, None
            self._write(shell)
            shell.wait()

    def _tell(self) -> None:
        if self._shell is None or self._shell.poll() is not None:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _WAIT_AND_KILL],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._write(self._shell, close=False)

    def _write(self, shell: subprocess.Popen[bytes], *, close: bool = True) -> None:
        assert shell.stdin is not None
        with suppress(BrokenPipeError):  # killed by somebody: the next child starts another
            os.write(shell.stdin.fileno(), " ".join(map(str, sorted(self._groups))).encode() + b"\n")
        if close:
            shell.stdin.close()


guard = Guard()
