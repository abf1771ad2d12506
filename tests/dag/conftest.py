"""Clients and settings of the tests of jobs: those of the flow, and a stage for those that race."""

from __future__ import annotations

from tests.flow.conftest import as_default, client, quick
from tests.races.conftest import props, stage

__all__ = ["as_default", "client", "props", "quick", "stage"]
