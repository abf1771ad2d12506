"""What the shop's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from shop import gateway, post
from shop.models import Model
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aaiclick_queue.testing import QueueUnderTest


@pytest.fixture(scope="session")
def aaiclick_queue_prepare() -> Callable[[str], None]:
    """The template has the shop's tables too; each test's database is a copy of it."""

    def prepare(url: str) -> None:
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
        Model.metadata.create_all(engine)
        engine.dispose()

    return prepare


@pytest.fixture
async def session(queue: QueueUnderTest) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(queue.url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with AsyncSession(engine, expire_on_commit=False) as session:
        yield session
    await engine.dispose()


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "charged", {})
    monkeypatch.setattr(gateway, "calls", [])
    monkeypatch.setattr(post, "sent", [])
