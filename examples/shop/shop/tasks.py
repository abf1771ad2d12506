"""What the shop does in the background."""

from __future__ import annotations

from aaiclick_queue import current, task

from . import gateway, post
from .models import Order, Payment


@task(retry_delay=30, max_attempts=5)
async def send_receipt(to: str, cents: int) -> str:
    text = f"Thank you! We have charged {cents / 100:.2f} €."
    await post.send(to, text)
    return text


@task
async def charge_order(order_id: int) -> str:
    """Exactly once in the database: payment, receipt and the end of this task are one commit.

    The gateway is outside of it, so it gets a key that is the same in every run of this task.
    """
    async with current().transaction() as session:
        order = await session.get_one(Order, order_id)
        reference = await gateway.charge(current().idempotency_key, order.cents)
        order.paid = True
        session.add(Payment(order_id=order.id, reference=reference))
        await current().enqueue(send_receipt, to=order.customer, cents=order.cents)
        current().result(reference)
    return reference


@task(queue="slow")
def count_customers() -> None:
    """A figure for the front page: one waiting count is enough, however many orders come in."""
