"""Exposition: the meters of a process as Prometheus reads them. Before: meters. After: the probe port, the server."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from . import __version__
from .errors import MissingExtra
from .meters import METERS, Labels
from .metric_families import FAMILIES, PREFIX, Family
from .middleware import failures
from .migrate import HEAD
from .postgres import POOLS

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def process_metrics() -> bytes:
    """What this process has counted, and what its code has put into prometheus_client's own registry."""
    return rendered(process_families(), others=True)


def rendered(families: Iterable[Metric], *, others: bool = False) -> bytes:
    """Text for Prometheus; `others`: also the default registry, but for names that are ours."""
    try:
        from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector
    except ImportError as missing:
        raise MissingExtra("/metrics", "metrics") from missing
    ours = list(families)
    names = {family.name for family in ours}

    class Ours(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from ours
            if others:
                yield from (family for family in REGISTRY.collect() if family.name not in names)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Ours())
    return generate_latest(registry)


def process_families() -> Iterator[Metric]:
    """One a metric of this process, those without a value too: they are known from the start."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as missing:
        raise MissingExtra("/metrics", "metrics") from missing
    counts: dict[str, dict[Labels, float]] = {
        **METERS.counts,
        "middleware_errors_total": {(name,): float(n) for name, n in failures.items()},
    }
    gauges: dict[str, Callable[[], Mapping[Labels, float]]] = {
        "build_info": _build_info,
        "db_pool_connections": _pools,
        **METERS.gauges,
    }
    for family in FAMILIES.values():
        if family.scope != "process":
            continue
        if family.kind == "counter":
            yield made(family, counts[family.name].copy())
        elif family.kind == "histogram":
            yield _histogram(family, _rows(family.name))
        else:
            yield made(family, _read(gauges.get(family.name)))


def made(family: Family, values: Mapping[Labels, float]) -> Metric:
    """A counter or gauge with its values."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    found = kind(PREFIX + family.name, family.text, labels=list(family.labels))
    for labels, value in values.items():
        found.add_metric(list(labels), value)
    return found


def _histogram(family: Family, rows: Mapping[Labels, list[float]]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    found = HistogramMetricFamily(PREFIX + family.name, family.text, labels=list(family.labels))
    for labels, row in rows.items():
        at, buckets = 0.0, []
        for limit, count in zip((*family.buckets, float("inf")), row, strict=False):
            at += count
            buckets.append(("+Inf" if limit == float("inf") else repr(float(limit)), at))
        found.add_metric(list(labels), buckets, row[-1])
    return found


def _rows(name: str) -> Mapping[Labels, list[float]]:
    if name != "worker_task_execution_time_seconds":
        return METERS.histograms[name].copy()
    rows = list(METERS.histograms["task_duration_seconds"].values())  # the same, over all labels
    return {(): [sum(column) for column in zip(*rows, strict=True)]} if rows else {}


def _read(gauge: Callable[[], Mapping[Labels, float]] | None) -> Mapping[Labels, float]:
    return gauge() if gauge is not None else {}


def _build_info() -> Mapping[Labels, float]:
    return {(__version__, platform.python_version(), HEAD): 1.0}


def _pools() -> Mapping[Labels, float]:
    sums = [sum(column) for column in zip((0, 0, 0), *(pool.usage() for pool in list(POOLS)), strict=True)]
    return {(state,): float(n) for state, n in zip(("used", "idle", "waiting"), sums, strict=True)}
