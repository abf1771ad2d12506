"""Settings: one frozen object, built once at the entry point from AAICLICK_QUEUE_* variables.

Nothing else in the package reads the environment. The README's table is generated from these fields.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from .errors import SettingsError
from .homes import default_home
from .schema import DEFAULT_SCHEMA, PLAIN_NAME

PREFIX = "AAICLICK_QUEUE_"
POSTGRES_SCHEMES = ("postgres", "postgresql", "postgresql+asyncpg", "postgresql+psycopg")
REDIS_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    *(f"redis{s}+{kind}" for kind in ("sentinel", "cluster") for s in ("", "s")),
)
CLICKHOUSE_SCHEMES = ("clickhouse", "clickhouses", "http", "https", "chdb")
LIKENESS = 0.8  # of a mistyped name to the one that was meant

FOREVER = "forever"
LONGEST_DAYS = 36_500


def days_or_forever(value: Any) -> float | str:
    """A number of days, or `forever`; ValueError says what is allowed."""
    if isinstance(value, str) and value.strip().lower() == FOREVER:
        return FOREVER
    try:
        days = float(value)
    except (TypeError, ValueError):
        days = 0.0
    if not 0 < days <= LONGEST_DAYS:  # 0 would be read as `forever` by one and as `at once` by another
        raise ValueError(
            f"give days, more than 0 and at most {LONGEST_DAYS:,}, or `{FOREVER}`; a task that need not be kept at all "
            "says so itself: keep='none'"
        )
    return days


Seconds = Annotated[float, Field(gt=0, le=366 * 86400)]
Days = Annotated[float | Literal["forever"], BeforeValidator(days_or_forever)]


class Settings(BaseModel):
    """Everything that can be set, with its default and its reason."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    postgres_url: str | None = Field(
        None, repr=False, description="Postgres to use; unset: a real Postgres embedded from a wheel."
    )
    postgres_schema: str = Field(DEFAULT_SCHEMA, pattern=PLAIN_NAME, description="Schema that holds every table.")
    postgres_pooler: Literal["none", "transaction"] = Field(
        "none", description="`transaction` behind pgbouncer in transaction mode: no prepared statements."
    )
    redis_url: str | None = Field(
        None, repr=False, description="Redis for wake-ups; unset: workers poll Postgres alone."
    )
    redis_prefix: str = Field(
        "aaiq", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="First part of every Redis key, as `{aaiq}:wake:mail`."
    )
    home: Path = Field(
        default_factory=default_home,
        description="Folder for the embedded Postgres and running fleets; a user data folder by default.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least level of log lines.")
    log_capture: bool = Field(
        True, description="Whether what each run prints and logs is kept, per attempt; least level `LOG_LEVEL`."
    )
    log_dir: Path | None = Field(
        None, description="Folder for the logs of runs; unset: `logs` in HOME. For several hosts a shared mount."
    )
    log_files: bool = Field(True, description="Whether logs of runs go to files; off: to ClickHouse alone.")
    log_retention_days: Days = Field(14, description="Days until a day's logs of runs are deleted, or `forever`.")
    log_max_bytes: int = Field(
        5 << 30, ge=1 << 20, le=1 << 50, description="Most bytes of logs of runs in LOG_DIR; the oldest days go first."
    )
    clickhouse_url: str | None = Field(
        None,
        repr=False,
        description="ClickHouse for logs of runs and for history beyond retention, as `clickhouse://user@host:8123/db`.",
    )
    history_patience_days: float = Field(
        7, ge=0, le=3650, description="How long beyond retention tasks are kept while ClickHouse does not take them."
    )
    lease_seconds: Seconds = Field(30, ge=1, description="A worker silent for this long has lost its runs.")
    heartbeat_seconds: Seconds | None = Field(
        None, description="Time between heartbeats; unset: a third of the lease. At most half of it."
    )
    task_timeout_seconds: Seconds = Field(3600, description="Soft timeout of a run where the task names none.")
    job_timeout_seconds: Seconds = Field(86400, description="How long a job may take where it names no timeout.")
    grace_seconds: float = Field(
        30, ge=0, le=86400, description="Time that running tasks get at SIGTERM before they are handed back."
    )
    max_attempts: int = Field(3, ge=1, le=1000, description="Attempts of a task, the first included.")
    lost_limit: int = Field(5, ge=1, le=1000, description="Lost runs of one task before it is FAILED as `WorkerLost`.")
    unknown_task_seconds: Seconds = Field(
        86400, description="How long a task whose entrypoint no worker knows is kept before it is FAILED."
    )
    payload_max_bytes: int = Field(1 << 20, ge=64, le=1 << 28, description="Largest encoded arguments of one task.")
    result_max_bytes: int = Field(1 << 20, ge=64, le=1 << 28, description="Largest encoded result of one task.")
    enqueue_timeout_seconds: Seconds = Field(
        5, description="Longest wait of an enqueue for Postgres before `PostgresUnavailable`."
    )
    poll_min_seconds: Seconds = Field(
        0.02, description="Without Redis: next look after one that found work; it grows from here."
    )
    poll_max_seconds: Seconds = Field(0.25, description="Without Redis: longest time between two looks.")
    prefetch: bool = Field(
        True,
        description="Whether a worker may claim, beyond its free slots, as many as it finished in the last 100 ms.",
    )
    loop_stall_seconds: Seconds = Field(
        30, description="An event loop blocked this long is reported with its stack and claims nothing."
    )
    retention_completed_days: Days = Field(
        7, description="Days until a COMPLETED or CANCELLED task is pruned with its result, or `forever`."
    )
    retention_failed_days: Days = Field(30, description="Days until a FAILED task is pruned, or `forever`.")
    retention_max_tasks: int | None = Field(
        None, ge=1, le=10**12, description="Only so many finished tasks are kept, the newest; unset: age alone decides."
    )
    stall_seconds: Seconds = Field(
        300, description="An open job of which nothing is on its way, unchanged for this long, raises an alarm."
    )
    zombie_seconds: float = Field(
        0, ge=0, le=366 * 86400, description="A run this long past its deadline raises an alarm."
    )
    stuck_seconds: Seconds = Field(
        1800, description="A queue that is not paused and whose oldest task has waited this long raises an alarm."
    )
    backpressure_percent: float = Field(
        100, gt=0, le=100, description="A queue this full, by its greatest depth, raises an alarm."
    )
    skew_seconds: Seconds = Field(2, description="A worker whose clock is this far off the database's raises an alarm.")
    without_workers_seconds: Seconds = Field(
        60, description="A queue with tasks that have waited this long and no live worker raises an alarm."
    )
    redact_names: str | None = Field(
        None,
        pattern=r"^[^;]{0,2000}$",
        description="Names of arguments that are shown nowhere besides `password`, `token` …, with commas: `pin,iban`.",
    )
    transaction_pool_size: int = Field(
        8, ge=1, le=500, description="Connections a worker process may open for `current().transaction()`."
    )

    tracing: Literal["off", "on"] = Field(
        "off", description="`on`: spans of tasks go where the standard OTEL_* variables say; needs the extra `otel`."
    )

    @field_validator("postgres_url")
    @classmethod
    def _known_postgres_scheme(cls, url: str | None) -> str | None:
        if url is not None:
            hosts = _netloc(url, POSTGRES_SCHEMES).rpartition("@")[2]
            if not all(re.fullmatch(r"(\[[^]]*\]|[^:]*)(:[0-9]*)?", host) for host in hosts.split(",")):
                raise ValueError("its port is no number; special characters in user and password are percent-encoded")
        return url

    @field_validator("redis_url")
    @classmethod
    def _known_redis_scheme(cls, url: str | None) -> str | None:
        if url is not None:
            _netloc(url, REDIS_SCHEMES)
        return url

    @field_validator("clickhouse_url")
    @classmethod
    def _known_clickhouse_scheme(cls, url: str | None) -> str | None:
        if url is not None:
            _netloc(url, CLICKHOUSE_SCHEMES)
        return url

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.heartbeat_seconds is not None and self.heartbeat_seconds > self.lease_seconds / 2:
            raise ValueError(
                f"{PREFIX}HEARTBEAT_SECONDS {self.heartbeat_seconds:g} is more than half of {PREFIX}LEASE_SECONDS "
                f"{self.lease_seconds:g}: one late beat would cost the lease; give at most {self.lease_seconds / 2:g}"
            )
        if self.poll_min_seconds > self.poll_max_seconds:
            raise ValueError(
                f"{PREFIX}POLL_MIN_SECONDS {self.poll_min_seconds:g} is above {PREFIX}POLL_MAX_SECONDS "
                f"{self.poll_max_seconds:g}: lower the first or raise the second"
            )
        return self

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, /, **given: Any) -> Settings:
        """Settings from the environment with `given` on top; a sentence for whatever is wrong."""
        environ = os.environ if environ is None else environ
        known = {PREFIX + name.upper(): name for name in cls.model_fields}
        values: dict[str, Any] = {}
        unknown: list[str] = []
        for variable, text in environ.items():
            if not variable.startswith(PREFIX):
                continue
            if variable not in known:
                unknown.append(variable)
            elif text != "":
                values[known[variable]] = text
        values |= {name: value for name, value in given.items() if value is not None}
        wrong = [f"{variable} is no setting of aaiclick-queue{_hint(variable, known)}" for variable in unknown]
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            allowed = cls.model_json_schema()["properties"]
            wrong += [_sentence(detail, allowed) for detail in error.errors()]
        if wrong:
            raise SettingsError("; ".join(wrong)) from None
        return settings

    @cached_property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats."""
        return self.heartbeat_seconds or self.lease_seconds / 3

    @property
    def postgres_shown(self) -> str:
        """The Postgres URL without its password."""
        return masked(self.postgres_url) if self.postgres_url else f"embedded in {self.home}"

    @property
    def log_folder(self) -> Path:
        """Where logs of runs are."""
        return self.log_dir or self.home / "logs"

    @property
    def clickhouse_shown(self) -> str:
        """The ClickHouse URL without its password."""
        return masked(self.clickhouse_url) if self.clickhouse_url else "none"

    @property
    def redis_shown(self) -> str:
        """The Redis URL without its password."""
        return masked(self.redis_url) if self.redis_url else "none"

    def shown(self, name: str) -> Any:
        """The value of a setting for people: of a URL without its password."""
        value = getattr(self, name)
        return masked(value) if name.endswith("_url") and value is not None else value


def masked(url: str) -> str:
    """The URL with its passwords replaced by stars."""
    url = re.sub(r"(://[^/?#:@]*):[^?#]*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&][^=&#]*password)=[^&#]*", r"\1=***", url)  # libpq takes one there too


def _netloc(url: str, schemes: Sequence[str]) -> str:
    """The part of a URL with login and hosts; a ValueError that repeats nothing of it, as any part may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("this is no URL: special characters in user and password are percent-encoded") from None
    if parts.scheme not in schemes:
        raise ValueError(f"give a URL that starts with one of {', '.join(scheme + '://' for scheme in schemes)}")
    return parts.netloc


def _hint(variable: str, known: Iterable[str]) -> str:
    """What was meant, compared with whole names and with their first words."""
    given, best, hint = variable.removeprefix(PREFIX), LIKENESS, ""
    for name in known:
        words = name.removeprefix(PREFIX).split("_")
        for count in range(1, len(words) + 1):
            likeness = difflib.SequenceMatcher(None, given, "_".join(words[:count])).ratio()
            if likeness > best:
                best, hint = likeness, f" (did you mean {name}?)"
    return hint


def _sentence(detail: Mapping[str, Any], allowed: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    if not where:
        return message
    if where not in allowed:
        return f"{PREFIX}{where.upper()} is no setting of aaiclick-queue"
    if detail["type"] != "value_error":
        message = f"give {_range(allowed[where])} ({allowed[where]['description'].rstrip('.')})"
    shown = "" if where.endswith("_url") else f" = {detail['input']!r}"
    return f"{PREFIX}{where.upper()}{shown}: {message}"


def _range(schema: Mapping[str, Any]) -> str:
    """What a setting takes, in words."""
    facts = {**schema, **next((kind for kind in schema.get("anyOf", ()) if kind.get("type") != "null"), {})}
    if "enum" in facts:
        return " or ".join(map(repr, facts["enum"]))
    if "pattern" in facts:
        return f"a text of the form {facts['pattern']}"
    kinds = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
    kind = kinds.get(facts.get("type", ""), "a text")
    if "maximum" not in facts:
        return kind
    least = f"from {facts['minimum']:,g}" if "minimum" in facts else f"above {facts.get('exclusiveMinimum', 0):,g}"
    return f"{kind} {least} to {facts['maximum']:,.0f}"
