"""The bounds that waits and runs are counted by, in seconds, and what follows from such counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

RUN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
WAIT_BUCKETS = (0.005, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


def added(column: str, bounds: Sequence[float]) -> str:
    """SQL: the sums of an array of counts over rows, place by place."""
    return f"ARRAY[{', '.join(f'sum({column}[{place}])' for place in range(1, len(bounds) + 2))}]::bigint[] AS {column}"


def percentile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """The value that `part` of all are at most, interpolated in its bucket; None where nothing was counted.

    `counts` has one place more than `bounds`: for what lies above the last one, which is told as that bound.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, below, low = part * total, 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low + (bound - low) * (wanted - below) / count
        below, low = below + count, bound
    return float(bounds[-1])
