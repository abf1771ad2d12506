"""Taking orders."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from .models import Order
from .tasks import charge_order, count_customers


async def place_order(session: AsyncSession, customer: str, cents: int) -> Order:
    """Write the order and the task that charges it: both are there after the commit, or neither is."""
    order = Order(customer=customer, cents=cents)
    session.add(order)
    await session.flush()
    await charge_order.enqueue(order.id, connection=session)
    await count_customers.options(dedupe_key="count", dedupe="skip").enqueue(connection=session)
    return order
