"""The stage of the races, for tests that are played with a fault planted."""

from __future__ import annotations

from tests.races.conftest import props, stage

__all__ = ["props", "stage"]
