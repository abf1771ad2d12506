"""What the tests of probes and metrics share: a question over HTTP, and metrics read as Prometheus reads them."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def wait_for(condition: Callable[[], Any]) -> Any:
    """What the condition gives as soon as that is true; nobody may listen yet where it asks."""
    deadline = time.monotonic() + 60
    while True:
        try:
            if found := condition():
                return found
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def get(port: int, path: str) -> tuple[int, str]:
    """Status and text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def ask(port: int, path: str) -> tuple[int, Any]:
    """Status and JSON."""
    status, text = get(port, path)
    return status, json.loads(text)


def samples(text: str | bytes) -> Samples:
    """Every sample of a scrape, by name and labels."""
    text = text.decode() if isinstance(text, bytes) else text
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float | None:
    """One of ours."""
    return found.get((f"aaiclick_queue_{name}", frozenset(labels.items())))
