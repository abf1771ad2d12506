"""What lets a process be looked at: the probe port, and the file for exec probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from ..probes import Address, Probes
from ..settings import Settings
from ..vitals import Pen, Vitals


@contextmanager
def observed(
    settings: Settings, vitals: Callable[[], Vitals], address: Address | None, *, waits: bool = False
) -> Iterator[Callable[[], None]]:
    """Answer probes while the block runs; gives what writes the file for exec probes."""
    pen = Pen(settings.home)
    loop = asyncio.get_running_loop()
    probes = nullcontext() if address is None else Probes(address, vitals, loop, waits=waits)
    with probes:
        pen.write(vitals())
        try:
            yield lambda: pen.write(vitals())
        finally:
            pen.erase()
