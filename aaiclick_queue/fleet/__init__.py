"""A fleet: named groups of worker processes on one machine, kept running by a supervisor that imports no user code.

file.py reads what is wanted → supervisor.py keeps it so, by group.py, place.py and member.py (one process) →
control.py lets other commands look and change. Before: cli/fleet.py. After: each process is `aaiclick-queue worker`.
"""

from __future__ import annotations
