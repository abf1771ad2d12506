"""Plays a scene of several actors in every order that their statements can come in.

Each actor has a connection of its own and waits before every statement and before every commit until it is its turn,
so that one can be stopped between the two with its locks held. An actor whose statement waits for a lock is seen in
Postgres and left waiting. Orders are tried depth first, with a bounded number of preemptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

from aaiclick_queue.postgres import Connection, Database, Record
from aaiclick_queue.schema import schema_sql
from aaiclick_queue.settings import Settings

Act = Callable[[Database], Awaitable[Any]]
Scene = Callable[["Play"], Awaitable[None]]

STEPS_IN_A_ROW = 14  # then it is somebody else's turn: a step that tries again and again would go on for ever
STUCK_SECONDS = 20.0
STATEMENT_SECONDS = 0.004  # most have been answered by then: one that has not may wait for a lock


class Actor(Database):
    """One connection whose statements wait for their turn."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, size=1, flow=True)
        self.name = ""
        self.pid = 0
        self.next_step = ""
        self.is_dead = False
        self._turn = asyncio.Event()
        self._arrived = asyncio.Event()

    async def _connect(self) -> Connection:
        made = await super()._connect()
        self.pid = made.raw.get_server_pid()
        return _Stepping(made, self)

    async def gate(self, step: str) -> None:
        """Wait for the turn to do this."""
        if self.is_dead:
            raise asyncio.CancelledError
        self.next_step = step
        self._arrived.set()
        await self._turn.wait()
        self._turn.clear()

    def begin(self, name: str, act: Act) -> None:
        self.name = name
        self._arrived.clear()
        self._turn.clear()
        self.task = asyncio.ensure_future(act(self))
        self.task.add_done_callback(lambda _: self._arrived.set())

    @property
    def at_gate(self) -> bool:
        return self._arrived.is_set() and not self.task.done()

    @property
    def settled(self) -> bool:
        return self._arrived.is_set()

    async def settles(self, seconds: float) -> bool:
        """Whether it is at its next step or its end by then."""
        if not self.settled:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        return self.settled

    async def comes_to_a_step(self) -> None:
        """Wait until it is at its next step, or has ended."""
        await self._arrived.wait()

    def go(self) -> str:
        """Let it do its next step; says which."""
        self._arrived.clear()
        self._turn.set()
        return f"{self.name}: {self.next_step}"


class _Stepping(Connection):
    def __init__(self, made: Connection, actor: Actor) -> None:
        super().__init__(made.raw, schema=actor.schema, begin=None)
        self._actor = actor

    async def fetch(self, sql: str, *args: Any) -> Sequence[Record]:
        await self._actor.gate(_title(sql))
        sql = schema_sql(sql, self._schema)
        if self.raw.is_in_transaction():
            return await self.raw.fetch(sql, *args)
        async with self.raw.transaction():
            rows = await self.raw.fetch(sql, *args)
            if not sql.lstrip().startswith("SELECT") or "FOR UPDATE" in sql:
                await self._actor.gate("commit")
            return rows

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        async with self.raw.transaction():
            yield self
            await self._actor.gate("commit")


class Play:
    """One order of a scene. `choices` are given for the first decisions, the rest is decided here."""

    def __init__(self, stage: Stage, choices: Sequence[int], preemptions: int) -> None:
        self._stage = stage
        self._choices = choices
        self._preemptions = preemptions
        self.decisions: list[tuple[int, int]] = []
        self.trace: list[str] = []

    async def run(self, **acts: Act) -> list[Any]:
        """Run the acts to their ends; what each gave or raised, in their order."""
        actors = [self._stage.actor(at) for at in range(len(acts))]
        for actor, (name, act) in zip(actors, acts.items(), strict=True):
            actor.begin(name, act)
        current, in_a_row = actors[0], 0
        async with asyncio.timeout(STUCK_SECONDS):
            await self._settle(actors)
            while runnable := [actor for actor in actors if actor.at_gate]:
                chosen = self._choose(runnable, current, in_a_row)
                in_a_row = in_a_row + 1 if chosen is current else 1
                current = chosen
                self.trace.append(current.go())
                await self._settle(actors)
        return await asyncio.gather(*(actor.task for actor in actors), return_exceptions=True)

    def _choose(self, runnable: list[Actor], current: Actor, in_a_row: int) -> Actor:
        others = [actor for actor in runnable if actor is not current]
        if current not in runnable:
            options = others
        elif others and in_a_row >= STEPS_IN_A_ROW:
            return others[0]
        else:
            options = [current, *others] if self._preemptions > 0 else [current]
        at = len(self.decisions)
        choice = self._choices[at] if at < len(self._choices) else 0
        assert choice < len(options), "the scene is not the same every time it is played"
        self.decisions.append((choice, len(options)))
        if current in runnable and options[choice] is not current:
            self._preemptions -= 1
        return options[choice]

    async def _settle(self, actors: Sequence[Actor]) -> None:
        """Until each has come to its next step, to its end, or to a lock that another one holds."""
        waiting: list[Actor] = []
        for actor in actors:
            while not await actor.settles(STATEMENT_SECONDS):
                if await self._stage.waits_for_a_lock(actor):
                    waiting.append(actor)
                    break
        # The lock may have been let go by one that came to its step only after the other was looked at.
        if not all([not actor.settled and await self._stage.waits_for_a_lock(actor) for actor in waiting]):
            await self._settle(actors)

    def next_choices(self) -> list[int] | None:
        """The choices of the next order; None after the last."""
        decisions = list(self.decisions)
        while decisions:
            choice, options = decisions.pop()
            if choice + 1 < options:
                return [made for made, _ in decisions] + [choice + 1]
        return None


class Stage:
    """Actors on connections to one database, and somebody who watches their locks."""

    def __init__(self, settings: Settings, watching: Database) -> None:
        self.settings = settings
        self._watching = watching
        self._actors: list[Actor] = []

    def actor(self, at: int) -> Actor:
        while len(self._actors) <= at:
            self._actors.append(Actor(self.settings))
        return self._actors[at]

    async def waits_for_a_lock(self, actor: Actor) -> bool:
        return bool(await self._watching.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", actor.pid))

    async def in_every_order(self, scene: Scene, *, preemptions: int = 3, at_least: int = 2) -> None:
        """Play the scene in every order; an error names the order in which it came about."""
        choices: list[int] | None = []
        played = 0
        while choices is not None:
            play = Play(self, choices, preemptions)
            try:
                await scene(play)
            except Exception as error:
                error.add_note(f"order {played + 1}:\n  " + "\n  ".join(play.trace))
                raise
            choices = play.next_choices()
            played += 1
        assert played >= at_least, f"only {played} orders: the scene has no race in it"

    async def dies(self, act: Act, at: int) -> bool:
        """Let the act come to its end, or stop it before its step number `at` and drop its connection."""
        actor = Actor(self.settings)
        actor.begin("mortal", act)
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                for _ in range(at + 1):
                    await actor.comes_to_a_step()
                    if actor.task.done():
                        actor.task.result()
                        return False
                    if at:
                        actor.go()
                        at -= 1
                actor.is_dead = True
                actor.task.cancel()
                await asyncio.wait([actor.task])
                return True
        finally:
            await actor.close()

    async def close(self) -> None:
        for actor in self._actors:
            await actor.close()


def _title(sql: str) -> str:
    return " ".join(sql.split())[:70]
