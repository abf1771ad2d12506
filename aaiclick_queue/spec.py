"""What is asked for: the options of a task and of one enqueue, checked as soon as they are given."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Self, get_args

import msgspec

from .errors import BadJob, BadTask, QueueError
from .redaction import MARKED, SIGN, shown_marks
from .retry import CELERY_OPTIONS, Duration, Exceptions, Retry, seconds

DedupeMode = Literal["raise", "skip", "replace", "debounce"]
DEDUPE_MODES: tuple[DedupeMode, ...] = ("raise", "skip", "replace", "debounce")
Rule = Literal["all_success", "all_done", "one_success", "none_failed", "always"]
RULES: tuple[Rule, ...] = get_args(Rule)
NAME_LIMIT = 200
NO_TEXT = frozenset({"\x00", *map(chr, range(0xD800, 0xE000))})  # what Postgres cannot store


class Hook(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task that is enqueued when another one ends or is retried, in the same commit."""

    entrypoint: str
    queue: str | None = None
    kwargs: msgspec.Raw | None = None  # what it is given beside `ended`
    tells: bool = True  # whether it is given `ended` at all


Hooks = tuple[Hook, ...]


def hooks_text(hooks: Mapping[str, Hooks | None]) -> str | None:
    """JSON as rows carry hooks: `failure`, `failure.2`, … are all told of a failure."""
    named = {
        f"{event}.{number}" if number > 1 else event: hook
        for event, given in hooks.items()
        for number, hook in enumerate(given or (), start=1)
    }
    return msgspec.json.encode(named).decode() if named else None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `@task(...)`, `.options(...)` and `apply_async(...)`; unset ones are inherited."""

    queue: str | None = None
    priority: int | None = None
    countdown: float | None = None
    eta: datetime | None = None
    expires: float | datetime | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    retry: Retry | None = None
    retry_on: Exceptions | None = None
    give_up_on: Exceptions | None = None
    dedupe_key: str | None = None
    dedupe: DedupeMode | None = None
    dedupe_until: float | None = None
    debounce_max: float | None = None
    correlation_id: str | None = None
    metadata: dict[str, Any] | None = None
    name: str | None = None
    concurrency_key: str | None = None
    order_by: str | None = None
    order_on_failure: Literal["continue", "stop"] | None = None
    keep: Literal["all", "failed", "none"] | None = None
    on_full: Literal["raise", "wait"] | None = None
    on_success: Hooks | None = None
    on_failure: Hooks | None = None
    on_retry: Hooks | None = None
    on_give_up: Hooks | None = None
    rule: Rule | None = None  # of a node: what of those before it lets it run
    critical: bool | None = None  # of a node: False counts its failure as if it had been skipped

    def over(self, below: Options) -> Options:
        """These options where they are set, `below` where they are not."""
        if below is NOTHING:
            return self
        merged = {field: getattr(below, field) for field in self.__struct_fields__}
        merged |= {f: v for f in self.__struct_fields__ if (v := getattr(self, f)) is not None}
        return Options(**merged)

    @classmethod
    def given(cls, options: Mapping[str, Any], *, below: Options | None = None) -> Self:
        """Options from keywords, Celery's spellings included; whatever cannot work is refused by name."""
        plain, spelled = _without_celery_names(options)
        retry = {k.removeprefix("retry_"): plain.pop(k) for k in _RETRY_FIELDS if k in plain}
        unknown = [name for name in plain if name not in cls.__struct_fields__ or name == "retry"]
        if unknown:
            if unknown[0] in ONLY_ON_TASK:
                raise BadTask(f"{unknown[0]} belongs to the code that runs, not to one enqueue: give it to @task(…)")
            if unknown[0] in ("schedule", "interval"):
                raise BadTask(f"{unknown[0]} is no option of a task: register_job('name', the_task, {unknown[0]}=…)")
            known = [
                *(f for f in cls.__struct_fields__ if f != "retry"),
                *_RETRY_FIELDS,
                *CELERY_OPTIONS,
                *ONLY_ON_TASK,
            ]
            near = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise BadTask(f"unknown option {unknown[0]!r}: {hint}")
        values = {
            name: checked(CHECKS[name], spelled.get(name, name), value)
            for name, value in plain.items()
            if value is not None
        }
        if retry:
            start = below.retry if below and below.retry else Retry()
            values["retry"] = msgspec.structs.replace(start, **_checked_retry(retry, spelled))
        if values.get("order_on_failure") and not (values.get("order_by") or (below and below.order_by)):
            raise BadTask("order_on_failure without order_by: name the order that a failure is to stop")
        if "countdown" in values and "eta" in values:
            raise BadTask("countdown and eta are both given: give one of them")
        return cls(**values)


NOTHING = Options()
ONLY_ON_TASK = ("entrypoint", "aliases", "heartbeat_timeout", "isolation")
_RETRY_FIELDS = ("retry_delay", "retry_factor", "retry_max_delay", "retry_jitter")


def filled_in(option: str, template: str | None, payload: str, entrypoint: str) -> str | None:
    """A key with the arguments filled in: `concurrency_key="tenant-{tenant}"`."""
    if template is None or "{" not in template:
        return template
    try:
        key = template.format(**(shown_marks(payload) if MARKED in payload else msgspec.json.decode(payload)))
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise BadTask(
            f"{option}={template!r} cannot be filled in from the arguments of {entrypoint} ({error!r}): "
            "name parameters that this call gives, as tenant-{tenant}"
        ) from None
    if SIGN in key:
        raise BadTask(f"{option}={template!r} of {entrypoint} names a secret, and keys are shown: name something else")
    if not 1 <= len(key) <= NAME_LIMIT or "\x00" in key:
        raise BadTask(f"{option}={key[:50]!r}…: filled in it must have 1 to {NAME_LIMIT} characters")
    return key


def checked(check: Callable[[str, Any], Any], name: str, value: Any, refusal: type[BadTask] = BadTask) -> Any:
    """What the check of an option makes of a value; one that cannot even be looked at is refused by name too."""
    try:
        return check(name, value)
    except QueueError:
        raise
    except Exception as error:  # its own __repr__ or __eq__, a number of 5,000 digits, a moment outside the calendar
        raise refusal(f"{name}: this {type(value).__qualname__} cannot be read ({type(error).__name__})") from error


def _without_celery_names(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The options by our names, and how those were spelled that came by another one."""
    plain: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name, value in options.items():
        if name in CELERY_OPTIONS and value is not None:
            ours = checked(lambda name, value: CELERY_OPTIONS[name](value), name, value)
            plain |= ours
            spelled |= dict.fromkeys(ours, name)
        elif name not in CELERY_OPTIONS:
            plain[name] = value
    return plain, spelled


def _checked_retry(given: Mapping[str, Any], spelled: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        shown = spelled.get(f"retry_{name}", f"retry_{name}")
        found[name] = checked(_RETRY_CHECKS.get(name, seconds), shown, value)
    return found


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > NAME_LIMIT or not NO_TEXT.isdisjoint(value):
        raise BadTask(f"{name}={value!r}: give a text of 1 to {NAME_LIMIT} characters without NUL or lone surrogates")
    return str.__str__(value)  # of a StrEnum or another kind of text what it holds: JSON takes no subclass


def whole(least: int, most: int) -> Any:
    """The check of an option that is a whole number."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadTask(f"{name}={value!r}: give a whole number from {least} to {most}")
        return value

    return check


def _duration(least: float = 0.0) -> Any:
    def check(name: str, value: Duration) -> float:
        return seconds(name, value, least=least)

    return check


def _moment(name: str, value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise BadTask(f"{name}={value!r}: give a datetime with a time zone")
    if value.tzinfo is None:
        raise BadTask(
            f"{name}={value!r} has no time zone, so it could mean any hour: "
            "use datetime.now(UTC) + …, or .astimezone() for local time"
        )
    return value.astimezone(UTC)


def _expires(name: str, value: Any) -> float | datetime:
    if isinstance(value, datetime):
        return _moment(name, value)
    return seconds(name, value)


def _exceptions(name: str, value: Any) -> Exceptions:
    many = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in many):
        raise BadTask(f"{name}={value!r}: give exception classes, e.g. {name}=(ConnectionError, TimeoutError)")
    return many


def _mode(name: str, value: Any) -> DedupeMode:
    if value not in DEDUPE_MODES:
        raise BadTask(f"{name}={value!r}: give one of {', '.join(DEDUPE_MODES)}")
    mode: DedupeMode = value
    return mode


def _one_of(*allowed: str) -> Any:
    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise BadTask(f"{name}={value!r}: give one of {', '.join(allowed)}")
        chosen: str = value
        return chosen

    return check


def _rule(name: str, value: Any) -> Rule:
    for rule in RULES:
        if value == rule:
            return rule
    near = difflib.get_close_matches(str(value), RULES, n=1)
    raise BadJob(f"{name}={value!r}: " + (f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(RULES)}"))


def truth(name: str, value: Any) -> bool:
    """The check of an option that is True or False."""
    if not isinstance(value, bool):
        raise BadTask(f"{name}={value!r}: give True or False")
    return value


def _hooks(name: str, value: Any) -> Hooks:
    return tuple(_hook(name, one) for one in (value if isinstance(value, list | tuple) else [value]))


def _hook(name: str, value: Any) -> Hook:
    """A task, or the entrypoint of one that is known to the workers only."""
    if isinstance(value, Hook):
        return value
    entrypoint = getattr(value, "entrypoint", value)
    if not isinstance(entrypoint, str):
        raise BadTask(f"{name}={value!r}: give a task, or the entrypoint of one as module.function")
    signature = getattr(value, "signature", None)
    if signature is not None and "ended" not in signature.parameters:
        raise BadTask(
            f"{name}={entrypoint}: a hook is called with one argument, `ended` (an EndedTask), which it does not take"
        )
    defaults = getattr(value, "defaults", None)
    return Hook(_text(name, entrypoint), defaults.queue if isinstance(defaults, Options) else None)


def _until(name: str, value: Any) -> float | None:
    return None if value == "final" else seconds(name, value)


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadTask(f"{name}={value!r}: give a dict with text keys")
    return value


CHECKS: dict[str, Any] = {
    "queue": _text,
    "priority": whole(-32768, 32767),
    "countdown": _duration(),
    "eta": _moment,
    "expires": _expires,
    "timeout": _duration(least=0.001),
    "max_attempts": whole(1, 1000),
    "retry_on": _exceptions,
    "give_up_on": _exceptions,
    "dedupe_key": _text,
    "dedupe": _mode,
    "dedupe_until": _until,
    "debounce_max": _duration(),
    "correlation_id": _text,
    "metadata": _object,
    "name": _text,
    "concurrency_key": _text,
    "order_by": _text,
    "order_on_failure": _one_of("continue", "stop"),
    "keep": _one_of("all", "failed", "none"),
    "on_full": _one_of("raise", "wait"),
    "on_success": _hooks,
    "on_failure": _hooks,
    "on_retry": _hooks,
    "on_give_up": _hooks,
    "rule": _rule,
    "critical": truth,
}
_RETRY_CHECKS: dict[str, Any] = {
    "jitter": lambda _, value: bool(value),
    "factor": lambda name, value: seconds(name, value, least=1, most=100),
}
HOOKS = ("success", "failure", "retry", "give_up")
