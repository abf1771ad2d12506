"""Webhooks: a job's end is told to a real server, signed, again while that cannot take it, and never with arguments."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from aaiclick_queue import Client, JobFailed, Settings, job, task
from aaiclick_queue.errors import BadTask
from aaiclick_queue.integrations.webhook import SIGNATURE, webhook
from aaiclick_queue.postgres import Database
from tests.tools import running_worker, until

SECRET = "a secret of both"
PATIENCE = 60
OUTCOMES = """
SELECT array_agg(status ORDER BY status) FROM aaiclick_queue.tasks
WHERE entrypoint = 'aaiclick_queue.webhook.orders'
"""


class Receiver(BaseHTTPRequestHandler):
    """Takes deliveries down, and answers as it is told to."""

    taken: ClassVar[list[tuple[str, dict[str, Any], bytes]]]
    answers: ClassVar[list[int]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.path, dict(self.headers), body))
        self.send_response(self.answers.pop(0) if self.answers else 204)
        self.end_headers()

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    class Own(Receiver):
        taken: ClassVar = []
        answers: ClassVar = []

    server = HTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook?of=shop", Own
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_receiver_hears_of_both_ends_and_can_check_who_told_it(
    quick: Settings, client: Client, receiver: tuple[str, type[Receiver]]
) -> None:
    url, own = receiver
    own.answers = [503]
    tell = webhook("orders", url, secret=SECRET, retry_delay=0.01)

    @task(max_attempts=1)
    async def pay(card: str, *, broken: bool = False) -> None:
        if broken:
            raise ValueError("no cover")

    @job(on_success=tell, on_failure=tell)
    def order(card: str, broken: bool = False) -> Any:
        return pay(card, broken=broken)

    async with running_worker(quick):
        well = await order.enqueue("4111", client=client)
        await well.result(PATIENCE)
        await until(lambda: len(own.taken) == 2)
        badly = await order.enqueue("4111", True, client=client)
        with pytest.raises(JobFailed):
            await badly.result(PATIENCE)
        await until(lambda: len(own.taken) == 3)
    told = [json.loads(body) for _, _, body in own.taken]
    assert [(one["type"], one["job"]["id"]) for one in told] == [
        ("job.completed", str(well.id)), ("job.completed", str(well.id)), ("job.failed", str(badly.id)),
    ]  # fmt: skip
    assert told[0]["delivery"] == told[1]["delivery"] != told[2]["delivery"]  # an attempt is no delivery of its own
    for path, headers, body in own.taken:
        assert path == "/hook?of=shop"
        assert b"4111" not in body
        at, _, signed = headers[SIGNATURE].removeprefix("t=").partition(",v1=")
        assert hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest() == signed


async def test_a_receiver_that_refuses_is_not_asked_again(
    quick: Settings, client: Client, db: Database, receiver: tuple[str, type[Receiver]]
) -> None:
    url, own = receiver
    own.answers = [410]

    @task
    async def pay() -> None:
        pass

    @job(on_success=webhook("orders", url, secret=SECRET, retry_delay=0.01))
    def order() -> Any:
        return pay()

    async with running_worker(quick):
        await (await order.enqueue(client=client)).result(PATIENCE)

        async def is_over() -> bool:
            return bool(await db.fetchval(OUTCOMES) == ["FAILED"])

        await until(is_over)
    assert len(own.taken) == 1


@pytest.mark.parametrize(("url", "secret"), [("ftp://example.com", "s"), ("/hook", "s"), ("https://example.com", "")])
def test_no_webhook_is_made_without_an_address_and_a_secret(url: str, secret: str) -> None:
    with pytest.raises(BadTask, match="webhook 'orders'"):
        webhook("orders", url, secret=secret)
