"""`make bench-scale`: how the cost of a task grows with what surrounds it. Figures are told, never asserted."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import redis

from . import scale_parts
from .__main__ import RESULTS, say
from .apps import tally
from .charts import lines, number
from .places import Broken, Servers
from .scale_sizes import FULL, QUICK, TINY, Found, Point, ScaleSizes
from .snapshot import snapshot
from .soak import soak
from .systems import ours

PARTS = {
    "backlog": scale_parts.backlog,
    "history": scale_parts.history,
    "job": scale_parts.job,
    "queues": scale_parts.queues,
    "workers": scale_parts.crew,
    "snapshot": snapshot,
    "pgbouncer": scale_parts.pgbouncer,
    "roundtrip": scale_parts.roundtrip,
    "soak": soak,
}


def main() -> None:
    """Measure the parts that are wanted, print, write."""
    given = _arguments()
    sizes = FULL if given.full else TINY if given.tiny else QUICK
    if given.seconds:
        sizes = sizes._replace(snapshot_seconds=given.seconds, soak_seconds=given.seconds)
    if given.full:
        os.environ.setdefault(tally.STEP_SECONDS, "900")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that servers and workers end with us
    [system] = [system for system in ours() if system.app == "ours" and system.redis != given.postgres_alone]
    began, found, trouble = time.monotonic(), {}, {}
    left_out = sizes.leaves_out()
    sizes_told = f"not the full ones: {left_out} (make bench-scale-full has all)" if left_out else "the full ones"
    say(f"sizes: {sizes_told}")
    with Servers() as servers:
        facts = servers.facts()
        for name, fact in facts.items():
            say(f"{name}: {fact}")
        for name in given.parts:
            at = time.monotonic()
            try:
                found[name] = PARTS[name](lambda: servers.place(system, Path(sys.executable).parent), sizes)
            except (Broken, psycopg.Error, redis.RedisError, OSError, AssertionError) as error:
                trouble[name] = str(error)
                say(f"{name}: left out: {error}")
                continue
            say(f"{_markdown(found[name])}\n[{time.monotonic() - at:.0f} s]\n")
    facts |= {"sizes": sizes_told, "system": system.name, "took": f"{time.monotonic() - began:.0f} s"}
    say(f"{time.monotonic() - began:.0f} s; all of it is in {_write(given.out, sizes, facts, found, trouble)}")


def _markdown(found: Found) -> str:
    table = [f"**{found.title}**"]
    table += [f"- {name}: {_points(curve)}" for name, curve in found.curves.items()]
    table += [f"- {' · '.join(mark.row())}" for mark in found.marks]
    return "\n".join(table)


def _points(curve: list[Point]) -> str:
    """Ten of them at most; the file has all."""
    shown = [curve[i * (len(curve) - 1) // 9] for i in range(10)] if len(curve) > 10 else curve
    return ", ".join(f"{number(x)} → {number(y)}" for x, y in shown)


def _write(
    folder: Path, sizes: ScaleSizes, facts: dict[str, str], found: dict[str, Found], trouble: dict[str, str]
) -> Path:
    made = folder / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-scale"
    made.mkdir(parents=True, exist_ok=True)
    parts = {name: part._asdict() | {"marks": [mark._asdict() for mark in part.marks]} for name, part in found.items()}
    content = {"facts": facts, "sizes": sizes._asdict(), "parts": parts, "trouble": trouble}
    (made / "scale.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    told = [f"- {name}: {fact}" for name, fact in (facts | {f"left out, {k}": v for k, v in trouble.items()}).items()]
    (made / "scale.md").write_text("\n\n".join([*map(_markdown, found.values()), "\n".join(told)]) + "\n")
    for name, part in found.items():
        (made / f"{name}.svg").write_text(lines(part.title, part.across, part.curves))
    return made


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="10⁷ waiting, 10⁷ finished, a soak of 20 minutes: two hours")
    size.add_argument("--tiny", action="store_true", help="only to see that it works")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--seconds", type=float, help="how long the snapshot is held and the soak lasts, instead")
    parser.add_argument("--postgres-alone", action="store_true", help="without Redis")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for tables, JSON and charts")
    return parser.parse_args()


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(PARTS)}")
    return parts


if __name__ == "__main__":
    main()
