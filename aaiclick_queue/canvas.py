"""Canvas: Celery's chains, groups and chords as another way to write a job. After: signatures.py, jobs.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Self

import msgspec

from .codec import Signature as Parameters
from .codec import decode_json, signature_of
from .each import each_of
from .errors import ArgumentsDoNotFit, BadJob, BadTask
from .job_options import JobOptions
from .jobs import Job
from .nodes import Group, Joint
from .signatures import WHERE, Around, Before, Canvas, Signature, canvas_of, listed_arguments, refuse
from .tasks import Task

ENTRYPOINT = "aaiclick_queue.canvas"  # of jobs without a body that a worker could run
JOB_OPTIONS = frozenset({
    "name", "max_parallel", "fail_fast", "metadata", "correlation_id", "dedupe_key", "dedupe", "dedupe_until",
    "on_success", "on_failure",
})  # fmt: skip


class Whole(Canvas):
    """What several signatures make: it becomes a job, or a part of one."""

    def __init__(self, tasks: Iterable[Canvas]) -> None:
        super().__init__()
        self.tasks = list(tasks)
        self.of_job: dict[str, Any] = {}

    def copy(self) -> Self:
        """One to be changed instead of this one, and of its signatures too."""
        whole = super().copy()
        whole.tasks = [one.copy() for one in self.tasks]
        return whole

    def set(self, *, immutable: bool | None = None, **options: Any) -> Self:
        """Set options of the job that it becomes, else of its tasks that have none of their own; gives itself."""
        of_job = {name: options.pop(name) for name in JOB_OPTIONS if name in options}
        self.of_job = {**self.of_job, **of_job}
        JobOptions.given(self.of_job)
        return super().set(immutable=immutable, **options)

    @property
    def is_plain(self) -> bool:
        """Whether nothing was set on the whole of it."""
        return not (self.given or self.of_job or self.callbacks or self.errbacks)

    def build_after(self, before: Before | None, around: Around) -> Before:
        """The nodes of this as a part of a job; `max_parallel` makes a group of them."""
        if others := set(self.of_job) - {"max_parallel", "name"}:
            raise BadJob(f"{min(others)}= belongs to a job: set it on the whole and not on a {self.kind} inside of it")
        if not self.of_job:
            return super().build_after(before, around)
        inside = self.copy()
        inside.of_job, inside.callbacks = {}, []
        with Group(self.of_job.get("name"), max_parallel=self.of_job.get("max_parallel")):
            ended = inside.build_after(before, around)
        return self._call_back(ended)

    def apply_async(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Enqueue it as one job from synchronous code, with options."""
        return self._changed(args, kwargs, options).as_job().apply_async()

    async def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue it as one job; `connection=` and `client=` as for a task."""
        where = {name: kwargs.pop(name) for name in WHERE if name in kwargs}
        return await self._changed(args, kwargs, where).as_job().enqueue()

    def _changed(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: dict[str, Any]) -> Self:
        return self.clone(args, kwargs, **options) if args or kwargs or options else self

    def as_job(self) -> Job[[], Any]:
        """The job that it becomes."""

        def body() -> Any:
            return self._call_back(self._build(None, Around())).value

        made: Job[[], Any] = Job(body, ENTRYPOINT, JobOptions.given({"name": self.title, **self.of_job}))
        made.signature = _Body(self, body)
        return made.options(**self.where) if self.where else made


class Chain(Whole):
    """Steps one after another, each with the result of the one before it."""

    kind = "chain"

    def __init__(self, tasks: Iterable[Canvas]) -> None:
        super().__init__(tasks)
        if not self.tasks:
            raise BadJob("a chain of nothing has no result: give it one signature at least")

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.tasks))

    @property
    def takes(self) -> bool:
        """Whether its first step takes what comes before."""
        return self.tasks[0].takes

    def shown(self) -> str:
        """Its steps as they are written."""
        return " | ".join(f"({one.shown()})" if isinstance(one, Many) else one.shown() for one in self.tasks)

    def steps(self) -> list[Canvas]:
        """Its steps, to be part of a longer chain; what was set on the whole of it keeps them together."""
        return [step.clone() for step in self.tasks] if self.is_plain else [self.clone()]

    def decode(self, text: str | None) -> Any:
        """Its result, which is that of its last step."""
        return self.tasks[-1].decode(text)

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """More arguments for its first step."""
        self.tasks[0].take(args, kwargs)

    def _build(self, before: Before | None, around: Around) -> Before:
        around = around.within(self)
        later = around.later()
        ended = self.tasks[0].build_after(before, around)
        for step in self.tasks[1:]:
            ended = step.build_after(ended, later)
        return ended

    def _set_immutable(self, immutable: bool) -> None:
        self.tasks[0].set(immutable=immutable)


class Many(Whole):
    """Signatures that run beside each other; their results are a list in their order."""

    kind = "group"

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.tasks[:5]))
        return f"group([{shown}{', …' if len(self.tasks) > 5 else ''}])"

    @property
    def takes(self) -> bool:
        """Whether one of them takes what comes before."""
        return any(one.takes for one in self.tasks)

    def shown(self) -> str:
        """Its tasks, equal ones counted."""
        counted = [(name, len(list(some))) for name, some in groupby(one.shown() for one in self.tasks)]
        return ", ".join(name if count == 1 else f"{count:,} × {name}" for name, count in counted) or "nothing"

    def decode(self, text: str | None) -> Any:
        """Its results, each as its task gives it."""
        parts = msgspec.json.decode(text or "null", type=list[msgspec.Raw] | None)
        if parts is None or len(parts) != len(self.tasks):
            return decode_json(text)
        return [one.decode(bytes(part).decode()) for one, part in zip(self.tasks, parts, strict=True)]

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """More arguments for each that takes some."""
        if not self.takes:
            raise ArgumentsDoNotFit(f"nothing in {self!r} takes an argument")
        for one in self.tasks:
            if one.takes:
                one.take(args, kwargs)

    def _build(self, before: Before | None, around: Around) -> Before:
        around = around.within(self)
        ended = [one.build_after(before, around) for one in self.tasks]
        joints = [joint for one in ended for joint in one.joints]
        if not joints and before is not None:
            return Before([], before.joints, has_all=False)
        return Before([one.value for one in ended], joints, all(one.has_all for one in ended))

    def _set_immutable(self, immutable: bool) -> None:
        for one in self.tasks:
            one.set(immutable=immutable)


class Chord(Chain):
    """A group, and what runs with the list of its results."""

    kind = "chord"

    def __init__(self, header: Many, body: Canvas | None = None) -> None:
        super().__init__([header] if body is None else [header, body])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`chord(header)(body)`: enqueue it; where a job is built, its nodes, of which it gives the body's."""
        if len(self.tasks) == 1 and args:
            whole = self.clone()
            whole.tasks.append(canvas_of(args[0], "chord").clone())
            return whole(*args[1:], **kwargs)
        return super().__call__(*args, **kwargs)

    def _build(self, before: Before | None, around: Around) -> Before:
        if len(self.tasks) == 1:
            raise BadJob(
                "a chord without a body: write chord(header)(body) or chord(header, body), or group(header) where "
                "nothing comes after it"
            )
        return super()._build(before, around)


class _Body(Parameters):
    """The body of a canvas: without arguments, with the results of the tasks that it ends with."""

    def __init__(self, canvas: Whole, body: Callable[[], Any]) -> None:
        super().__init__(body, signature_of(body))
        self._canvas = canvas

    def decode_result(self, payload: str | None) -> Any:
        """The result as the annotations of those tasks say."""
        return self._canvas.decode(payload)


def signature(
    task: Task[Any, Any] | str | Canvas,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    immutable: bool = False,
    **options: Any,
) -> Any:
    """A signature of a task, which may be given by its entrypoint and imported later; of a canvas, a copy."""
    if isinstance(task, Canvas):
        return task.clone(args, kwargs, immutable=immutable or None, **options)
    if not isinstance(task, Task) and not (isinstance(task, str) and task):
        raise BadTask(f"signature({task!r}): give a task, or the entrypoint of one as module.function")
    return Signature(task, listed_arguments(args), kwargs, immutable=immutable).set(**options)


def chain(*signatures: Any) -> Chain:
    """One after another, each with the result of the one before it; `chain(a.s(1), b.s())` is `a.s(1) | b.s()`."""
    return Chain([step for one in _several(signatures, "chain") for step in one.steps()])


def group(*signatures: Any) -> Many:
    """These beside each other; the result is the list of theirs."""
    found: list[Canvas] = []
    for one in _several(signatures, "group"):
        found += [inner.clone() for inner in one.tasks] if isinstance(one, Many) and one.is_plain else [one.clone()]
    return Many(found)


def chord(header: Any, body: Canvas | None = None) -> Chord:
    """A group and what runs with the list of its results: `chord(header, body)`, or `chord(header)(body)` at once."""
    whole = header.copy() if isinstance(header, Many) else group(header)
    return Chord(whole, None if body is None else canvas_of(body, "chord").clone())


def starmap(task: Task[Any, Any], items: Any = None) -> Signature:
    """One task that runs the function for each tuple of arguments; without any, for those that the last step gives."""
    if items is None:
        return Signature(each_of(task))
    if isinstance(items, Iterator):
        items = list(items)
    return Signature(each_of(task), (items,), immutable=True)


def chunks(task: Task[Any, Any], items: Iterable[Any], size: int) -> Many:
    """A group of starmaps over `size` of the items each."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise BadTask(f"chunks(…, {size!r}): give how many items a task is to have, a whole number from 1 on")
    if isinstance(items, Joint) or not isinstance(items, Iterable):
        raise BadTask(f"chunks({items!r:.100}, …): give the items; for those that a task will give, use map")
    items, each = list(items), each_of(task)
    return Many(Signature(each, (items[at : at + size],), immutable=True) for at in range(0, len(items), size))


def _several(given: tuple[Any, ...], what: str) -> list[Canvas]:
    many = given[0] if len(given) == 1 and not isinstance(given[0], Canvas) else given
    if isinstance(many, Task) or not isinstance(many, Iterable):
        refuse(many, what)
    return [canvas_of(one, what) for one in many]
