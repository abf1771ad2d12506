"""`make chaos`: rounds of faults for an hour, each with the next seed and servers of its own."""

from __future__ import annotations

import os
import random
import sys
import time
from fnmatch import fnmatch
from functools import partial

from tests.chaos.faults import FAULTS
from tests.chaos.report import one_line, replay, slow_kinds, story, summary, table_of_faults, wrongs
from tests.chaos.rounds import TOGETHER, Played, play

HOUR = 3600.0
ROUND_SECONDS = 180.0
say = partial(print, flush=True)


def main() -> int:
    """Play until the time is over; 1 if anything was lost, stuck, double or early."""
    seconds = float(os.environ.get("CHAOS_SECONDS") or HOUR)
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(10**6))
    together = float(os.environ.get("CHAOS_TOGETHER") or TOGETHER)
    load = int(os.environ.get("CHAOS_LOAD") or 1)
    wanted = os.environ.get("CHAOS_FAULTS") or ""
    names = [name for name in FAULTS if any(fnmatch(name, part.strip()) for part in (wanted or "*").split(","))]
    if not names:
        say(f"CHAOS_FAULTS={wanted}: there are {', '.join(FAULTS)}")
        return 2
    until = time.monotonic() + seconds
    rounds: list[Played] = []
    while (left := until - time.monotonic()) > 0:
        length = min(ROUND_SECONDS, max(left, 20.0)) if rounds else min(ROUND_SECONDS, seconds)
        played = play(seed + len(rounds), length, names, together=together, load=load)
        rounds.append(played)
        say(one_line(played))
        if played.wrong or os.environ.get("CHAOS_STORY"):
            say(story(played))
        if played.wrong:
            say(f"{wrongs(played)}\n{played.told}\nagain: {replay(played, wanted)}")
    say(f"\n{table_of_faults(rounds)}\n\n{summary(rounds)}")
    for line in sorted({line for one in rounds for line in one.left_out if "Sentinel" not in line}):
        say(f"not run here: {line}")
    slow = slow_kinds(rounds)
    for line in slow:
        say(f"WRONG recovery takes too long: {line}")
    return int(bool(slow) or any(one.wrong for one in rounds))


if __name__ == "__main__":
    sys.exit(main())
