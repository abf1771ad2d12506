"""Inputs: results of other tasks take the place of the references in claimed arguments.

Before: claim. After: execute. A statement for all runs of a claim, not one a run; texts are spliced, never decoded.
What a run may name are tasks of its own job that completed; all else is null, and no item in a list of a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..references import Reference, references, replaced
from ..schema import Transaction
from .claim import Claimed

# A map's group gives its items; what those have added there speaks through them. Group by group: joined the obvious
# way, a plan made on empty tables reads all tasks of all jobs.
MEMBERS_OF_GROUPS = """
WITH RECURSIVE under AS (
    SELECT g.id AS root, g.id, g.mapped FROM aaiclick_queue.groups g WHERE g.id = ANY($1::bigint[])
    UNION  -- not ALL: groups that lie in each other, as only a client of another kind writes them, end as well
    SELECT under.root, g.id, g.mapped FROM under CROSS JOIN LATERAL (
        SELECT g.id, g.mapped FROM aaiclick_queue.groups g WHERE g.parent_group_id = under.id OFFSET 0) AS g
    WHERE NOT under.mapped
)
SELECT under.root, t.id, CASE WHEN under.id = under.root THEN t.map_index END AS map_index
FROM under CROSS JOIN LATERAL (
    SELECT t.id, t.map_index, t.status FROM aaiclick_queue.tasks t WHERE t.group_id = under.id OFFSET 0) AS t
WHERE t.status = 'COMPLETED' AND (NOT under.mapped OR t.map_index IS NOT NULL)
"""
RESULTS_OF_TASKS = """
SELECT t.id, t.job_id, t.result, t.after_gate IS NOT NULL AS continued FROM aaiclick_queue.tasks t
WHERE t.id = ANY($1::bigint[]) AND t.status = 'COMPLETED'
"""
BULK = 10_000
DEPTH = 10_000  # of tasks that were continued by tasks that were continued
NOTHING = "null"
_LARGEST_ID = 2**63 - 1


async def filled_in(tx: Transaction, runs: Sequence[Claimed]) -> list[Claimed]:
    """The runs with results in the place of the references in their arguments."""
    results = _Results(tx)
    await results.load([one for run in runs for one in references(run.kwargs)])
    return [msgspec.structs.replace(run, kwargs=results.spliced(run.kwargs, run.job_id)) for run in runs]


async def spliced(tx: Transaction, text: str, job_id: int) -> str:
    """One text of the job, as its result or that of a task which was continued, with what its references name."""
    results = _Results(tx)
    await results.load(list(references(text)))
    return results.spliced(text, job_id)


class _Results:
    """What references name, as JSON texts."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._members: dict[int, list[int]] = {}
        self._job_of: dict[int, int | None] = {}
        self._texts: dict[int, str] = {}
        self._continued: dict[int, str] = {}  # of tasks that returned others: texts that hold references themselves

    async def load(self, wanted: Sequence[Reference]) -> None:
        """Read all that these name, and what that names in its turn."""
        asked: set[int] = set()
        for _ in range(DEPTH):
            await self._load_members({one.ids[0] for one in wanted if one.kind == "group"} - self._members.keys())
            ids = {task_id for one in wanted for task_id in self._ids(one) if task_id <= _LARGEST_ID} - asked
            if not ids:
                break
            asked |= ids
            continued = await self._load_results(sorted(ids))
            wanted = [one for task_id in continued for one in references(self._continued[task_id])]
        for group, members in self._members.items():
            self._members[group] = self._speaking(members)
        self._splice_continued()

    def spliced(self, text: str, job_id: int | None) -> str:
        """The text with what its references name, as far as that is of this job."""
        return replaced(text, lambda one: self._value(one, job_id))

    async def _load_members(self, groups: set[int]) -> None:
        if not (wanted := [group for group in groups if group <= _LARGEST_ID]):
            return
        found: dict[int, list[tuple[int, int]]] = {group: [] for group in wanted}
        for row in await self._tx.fetch(MEMBERS_OF_GROUPS, wanted):
            found[row["root"]].append((-1 if row["map_index"] is None else row["map_index"], row["id"]))
        self._members |= {group: [task_id for _, task_id in sorted(members)] for group, members in found.items()}

    async def _load_results(self, ids: Sequence[int]) -> list[int]:
        """Read them; gives those that were continued."""
        continued = []
        for start in range(0, len(ids), BULK):
            for task_id, job_id, result, is_continued in await self._tx.fetch(
                RESULTS_OF_TASKS, ids[start : start + BULK]
            ):
                self._job_of[task_id] = job_id
                if is_continued and result is not None:
                    self._continued[task_id] = result
                    continued.append(task_id)
                else:
                    self._texts[task_id] = NOTHING if result is None else result
        return continued

    def _speaking(self, members: Sequence[int]) -> list[int]:
        """Without those that continue another one of them: what they came to is that one's result."""
        continued = [task_id for task_id in members if task_id in self._continued]
        told = {n for task_id in continued for one in references(self._continued[task_id]) for n in self._ids(one)}
        return [task_id for task_id in members if task_id not in told] if told else list(members)

    def _splice_continued(self) -> None:
        """Those first that others name. Not recursive: a task may have been continued a thousand times."""
        opened: set[int] = set()
        for start in self._continued:
            path = [start]
            while path:
                at = path[-1]
                named = () if at in opened else self._open_in(at)
                opened.add(at)
                if more := [task_id for task_id in named if task_id not in opened]:
                    path += more
                    continue
                path.pop()
                if at not in self._texts:
                    self._texts[at] = self.spliced(self._continued[at], self._job_of[at])

    def _open_in(self, task_id: int) -> Iterable[int]:
        named = (n for one in references(self._continued[task_id]) for n in self._ids(one))
        return [n for n in named if n in self._continued and n not in self._texts]

    def _ids(self, one: Reference) -> Sequence[int]:
        return self._members.get(one.ids[0], ()) if one.kind == "group" else one.ids

    def _value(self, one: Reference, job_id: int | None) -> str:
        ids = self._ids(one)
        if one.kind in ("group", "completed"):
            ids = [task_id for task_id in ids if self._is_of(task_id, job_id)]
        texts = [self._texts.get(n, NOTHING) if self._is_of(n, job_id) else NOTHING for n in ids]
        return texts[0] if one.kind == "node" else f"[{','.join(texts)}]"

    def _is_of(self, task_id: int, job_id: int | None) -> bool:
        return job_id is not None and self._job_of.get(task_id) == job_id
