"""The dashboard and the HTTP API in an application of your own, with your own idea of who may do what.

Run it: python examples/dashboard.py             asks the API a few things and ends
        python examples/dashboard.py --serve     then look at http://127.0.0.1:8000/queue/
"""

from __future__ import annotations

import asyncio
import sys

import httpx
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request

from aaiclick_queue import Client, Settings, Worker, handle, task
from aaiclick_queue.server import create_app
from aaiclick_queue.server.roles import Who

STAFF = {"anna": "writer", "ben": "reader"}


@task
async def greet(name: str) -> str:
    print(f"about to greet {name}")
    return f"hello {name}"


async def who_asks(request: Request) -> Who | None:
    """Your own sign-in comes here; None is somebody whom you do not know."""
    name = request.headers.get("x-staff", "")
    return Who(name, "writer" if STAFF[name] == "writer" else "reader") if name in STAFF else None


def application(client: Client) -> FastAPI:
    shop = FastAPI(title="shop")
    shop.mount("/queue", create_app(client=client, auth=who_asks))
    return shop


async def ask(shop: FastAPI, client: Client) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(shop), base_url="http://localhost/queue/api/v1") as http:
        anna, ben = {"x-staff": "anna"}, {"x-staff": "ben"}
        asked = {"entrypoint": greet.entrypoint, "kwargs": {"name": "Ada"}}
        print("nobody:", (await http.get("/queues")).status_code)
        print("ben enqueues:", (await http.post("/tasks", json=asked, headers=ben)).status_code)
        task_id = (await http.post("/tasks", json=asked, headers=anna)).json()["id"]
        await handle(int(task_id), client=client).result(timeout=30)
        print("result:", (await http.get(f"/tasks/{task_id}", headers=ben)).json()["result"])
        explained = (await http.get(f"/tasks/{task_id}/explain", headers=ben)).json()
        print("explained:", explained["code"])


async def main() -> None:
    settings = Settings.load()
    worker = Worker(settings)
    working = asyncio.create_task(worker.run())
    client = Client(settings)
    shop = application(client)
    try:
        await ask(shop, client)
        if "--serve" in sys.argv:
            # Pages of the dashboard hold a stream open, for which uvicorn would wait as long as it lasts.
            await uvicorn.Server(uvicorn.Config(shop, port=8000, timeout_graceful_shutdown=5)).serve()
    finally:
        worker.stop()
        await working
        await client.close()


if __name__ == "__main__":
    asyncio.run(main())
