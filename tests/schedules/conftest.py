"""Clients and settings of the tests of schedules: those of the flow."""

from __future__ import annotations

from tests.flow.conftest import as_default, client, quick

__all__ = ["as_default", "client", "quick"]
