"""Orders on a real queue: what is committed is charged once, whatever dies on the way."""

from __future__ import annotations

import pytest
from shop import gateway, post
from shop.models import Payment
from shop.orders import place_order
from shop.tasks import charge_order, count_customers, send_receipt
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from aaiclick_queue import Status
from aaiclick_queue.testing import Clock, QueueUnderTest


async def payments(session: AsyncSession) -> int:
    return (await session.scalar(select(func.count()).select_from(Payment))) or 0


async def test_an_order_that_is_rolled_back_is_never_charged(queue: QueueUnderTest, session: AsyncSession) -> None:
    await place_order(session, "ada@example.com", 1999)
    await session.rollback()
    await queue.assert_not_enqueued(charge_order)


async def test_an_order_is_charged_and_the_receipt_sent(queue: QueueUnderTest, session: AsyncSession) -> None:
    order = await place_order(session, "ada@example.com", 1999)
    await session.commit()
    await queue.assert_enqueued(charge_order, order_id=order.id)
    await queue.drain(raising=True)
    await session.refresh(order)
    assert order.paid
    assert post.sent == [("ada@example.com", "Thank you! We have charged 19.99 €.")]


async def test_two_orders_are_one_count(queue: QueueUnderTest, session: AsyncSession) -> None:
    for _ in range(2):
        await place_order(session, "ada@example.com", 1999)
        await session.commit()
    assert len(await queue.tasks(count_customers, status=Status.QUEUED)) == 1


async def test_a_receipt_waits_until_the_mail_server_is_back(
    queue: QueueUnderTest, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "is_open", False)
    await send_receipt.enqueue("ada@example.com", 1999)
    assert await queue.drain() == []
    [waiting] = await queue.tasks(send_receipt)
    assert (waiting.status, waiting.attempt) == (Status.SCHEDULED, 1)

    monkeypatch.setattr(post, "is_open", True)
    await clock.advance(minutes=1)
    [sent] = await queue.drain()
    assert (sent.status, sent.attempt) == (Status.COMPLETED, 2)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_dies_at_the_gateway_charges_once(
    queue: QueueUnderTest, clock: Clock, session: AsyncSession, when: str
) -> None:
    order = await place_order(session, "ada@example.com", 1999)
    await session.commit()
    with queue.kill_at("shop.gateway.charge", when=when):  # type: ignore[arg-type]
        await queue.drain()
    [lost] = await queue.tasks(charge_order)
    assert lost.status is Status.RUNNING  # as far as anybody knows, until its lease ends

    await clock.advance(minutes=1)
    await queue.drain(raising=True)
    [done] = await queue.tasks(charge_order)
    assert (done.status, done.lost_count, done.runs) == (Status.COMPLETED, 1, 2)
    assert list(gateway.charged.values()) == [1999]
    assert await payments(session) == 1
    assert len(post.sent) == 1
    await session.refresh(order)
    assert order.paid


async def test_an_order_that_two_workers_charge_at_a_time_is_paid_once(
    queue: QueueUnderTest, session: AsyncSession
) -> None:
    await place_order(session, "ada@example.com", 1999)
    await session.commit()
    with queue.run_twice(charge_order):
        await queue.drain()
    assert len(gateway.calls) == 2
    assert len(gateway.charged) == await payments(session) == len(post.sent) == 1
