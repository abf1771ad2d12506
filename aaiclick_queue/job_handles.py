"""Handles of jobs: what an enqueue of a job gives back, and how to ask what became of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from .client import Client
from .codec import decode_json
from .errors import BadJob, JobCancelled, JobEnded, JobFailed, ResultExpired, UnknownJob, WrongContext
from .flow.inputs import spliced
from .handles import Handle, at_home, end_of
from .job_figures import JobProgress, read_progress
from .nodes import Node
from .outcome import Error
from .portal import run_blocking
from .status import JobStatus
from .waiting import Gone

R = TypeVar("R")
T = TypeVar("T")

JOB_STATUS = "SELECT status FROM aaiclick_queue.jobs WHERE id = $1"
FIRST_FAILED = """
SELECT t.name, t.status, t.error FROM aaiclick_queue.tasks t
WHERE t.job_id = $1 AND t.status IN ('FAILED', 'CANCELLED') AND t.critical IS NOT FALSE
ORDER BY t.status DESC, t.id LIMIT 20
"""

# Nobody failed, and yet somebody could not go on: a branch was to choose by a result that names none of its sides.
WRONG_CHOICES = """
SELECT chooser.name, left(chooser.result::text, 100) AS result, d.known
FROM aaiclick_queue.dependencies d JOIN aaiclick_queue.tasks chooser ON chooser.id = d.previous_id
WHERE d.job_id = $1 AND d.known IS NOT NULL AND d.previous_type = 'task' AND chooser.status = 'COMPLETED'
  AND aaiclick_queue.arrives_as('OPEN', d.choices, d.known, chooser.result) = 'FAIL'
ORDER BY d.previous_id, d.next_id LIMIT 1
"""


class JobHandle(Generic[R]):
    """One job that was written. Make one from an id with `job_handle(id)`."""

    __slots__ = ("_client", "_decode", "_ids", "_in_callers_transaction", "id")

    def __init__(
        self,
        job_id: int,
        *,
        decode: Callable[[str | None], Any] = decode_json,
        client: Client | None = None,
        in_callers_transaction: bool = False,
        ids: Mapping[int, int] | None = None,
    ) -> None:
        self.id = job_id
        self._decode = decode
        self._client = client
        self._in_callers_transaction = in_callers_transaction
        self._ids = ids or {}

    def __repr__(self) -> str:
        return f"JobHandle({self.id})"

    def task(self, node: Node) -> Handle[Any]:
        """The handle of one of its tasks, by the node that its body built."""
        if node.number not in self._ids:
            raise BadJob(f"{node.name} is no node that this handle's enqueue wrote")
        return Handle(self._ids[node.number], client=self._client)

    async def status(self) -> JobStatus:
        """Where the job is now."""
        return await self._there(self._status)

    async def wait(self, timeout: float | None = None) -> JobStatus:  # noqa: ASYNC109 - as in every queue
        """Wait for the end, whatever it is."""
        return JobStatus((await self._end(timeout))["status"])

    async def result(self, timeout: float | None = None) -> R:  # noqa: ASYNC109
        """Wait for the end; gives what the body returned, with results in the place of nodes, or raises JobFailed."""
        end = await self._end(timeout)
        value: R = await self._there(lambda client: self._value(client, end))
        return value

    async def progress(self) -> JobProgress:
        """How far the job is and when it may end: one look, however large it is."""
        return await self._there(self._progress)

    async def cancel(self) -> bool:
        """End the job as CANCELLED: what runs is stopped, what waits never starts; False when it had ended before."""
        return await self._there(self._cancel)

    def get(self, timeout: float | None = None) -> R:
        """As `result`, for synchronous code."""
        return run_blocking(self.result(timeout), instead="await run.result()")

    def ready(self) -> bool:
        """Whether the job has ended, for synchronous code."""
        return run_blocking(self.status(), instead="await run.status()").is_final

    async def _there(self, ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        return await at_home(self._client, ask)

    async def _status(self, client: Client) -> JobStatus:
        found = await (await client.database()).fetchval(JOB_STATUS, self.id)
        if found is None:
            raise UnknownJob(f"no job {self.id}: its transaction is not committed, or it was pruned")
        return JobStatus(found)

    async def _cancel(self, client: Client) -> bool:
        from .recovery import cancel_job

        try:
            await cancel_job(self.id, client=client)
        except JobEnded:
            return False
        return True

    async def _progress(self, client: Client) -> JobProgress:
        return await read_progress(await client.database(), self.id)

    async def _end(self, timeout: float | None) -> Any:  # noqa: ASYNC109
        end = await end_of(self.id, self._client, timeout)
        if end is None:
            raise TimeoutError(f"job {self.id} has not ended within {timeout:g} s; it goes on")
        if not isinstance(end, Gone):
            return end
        if self._in_callers_transaction and not end.was_there:
            raise WrongContext(
                f"job {self.id} was written in your transaction, which is not committed: "
                "it starts only after the commit, so wait for its result after that"
            )
        why = "was removed meanwhile" if end.was_there else "was pruned or never committed"
        raise ResultExpired(f"no job {self.id} in the database: it {why}", task_id=self.id)

    async def _value(self, client: Client, end: Any) -> Any:
        error = Error.read(end["error"]) if end["error"] else Error("Unknown")
        match JobStatus(end["status"]):
            case JobStatus.COMPLETED if end["result"] is None:
                return self._decode(None)
            case JobStatus.COMPLETED:
                return self._decode(await spliced(await client.database(), end["result"], self.id))
            case JobStatus.CANCELLED:
                why = f"{error.type}: {error.message}"
                raise JobCancelled(f"job {self.id} was cancelled: {why}", task_id=self.id)
            case _:
                raise await self._failure(client, error)

    async def _failure(self, client: Client, error: Error) -> JobFailed:
        rows = await (await client.database()).fetch(FIRST_FAILED, self.id)
        failed = [(row["name"], _shown(row)) for row in rows]
        if not failed:
            rows = await (await client.database()).fetch(WRONG_CHOICES, self.id)
            failed = [(row["name"], _wrong_choice(row)) for row in rows]
        first = "".join(f"; {name}: {why}" for name, why in failed[:3])
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        return JobFailed(f"job {self.id} failed, {error.message}{first}{more}", task_id=self.id, failed=failed)


def _shown(row: Any) -> str:
    error = Error.read(row["error"]) if row["error"] else Error(row["status"])
    return f"{error.type}: {error.message}" if error.message else error.type


def _wrong_choice(row: Any) -> str:
    sides = ", ".join(sorted(row["known"]))
    return f"its result {row['result']} names no side of its branch: return one of {sides}, or give branch a default="


def job_handle(job_id: int, *, client: Client | None = None) -> JobHandle[Any]:
    """The handle of a job whose id is known."""
    if isinstance(job_id, bool) or not isinstance(job_id, int) or not 0 < job_id < 2**63:
        raise BadJob(f"{job_id!r} is no job id: give the whole number that an enqueue gave, int(…) of its text")
    return JobHandle(job_id, client=client)
