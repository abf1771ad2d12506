"""Settings: read once, checked as a whole, and every refusal names the variable, the value and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pydantic
import pytest

from aaiclick_queue.errors import SettingsError
from aaiclick_queue.homes import SYSTEM_HOME
from aaiclick_queue.settings import Settings, masked


def test_without_anything_set_the_defaults_hold() -> None:
    settings = Settings.load({})
    assert (settings.postgres_url, settings.redis_url, settings.postgres_schema) == (None, None, "aaiclick_queue")
    assert (settings.lease_seconds, settings.heartbeat, settings.max_attempts) == (30, 10, 3)
    assert settings.postgres_shown.startswith("embedded in ")
    assert settings.redis_shown == "none"


def test_variables_are_read_by_their_type_and_arguments_stand_over_them() -> None:
    environ = {
        "AAICLICK_QUEUE_LEASE_SECONDS": "6",
        "AAICLICK_QUEUE_PREFETCH": "false",
        "AAICLICK_QUEUE_HOME": "/tmp/here",
        "AAICLICK_QUEUE_REDIS_URL": "",
        "PATH": "/bin",
    }
    settings = Settings.load(environ, lease_seconds=8, max_attempts=None)
    assert (settings.lease_seconds, settings.prefetch, settings.home) == (8, False, Path("/tmp/here"))
    assert (settings.redis_url, settings.max_attempts) == (None, 3)


def test_an_account_without_a_home_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert Settings.load({}).home == SYSTEM_HOME


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AAICLICK_QUEUE_MAX_ATTEMPTS", "7")
    assert Settings.load().max_attempts == 7
    assert Settings.load({}).max_attempts == 3


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"LEASE_SECOND": "5"}, "AAICLICK_QUEUE_LEASE_SECOND is no setting.*did you mean AAICLICK_QUEUE_LEASE_SECONDS"),
        ({"LESE": "5"}, "AAICLICK_QUEUE_LESE is no setting.*did you mean AAICLICK_QUEUE_LEASE_SECONDS"),
        ({"POSTGRES": "5"}, "AAICLICK_QUEUE_POSTGRES is no setting.*did you mean AAICLICK_QUEUE_POSTGRES_URL"),
        ({"COLOUR": "5"}, "AAICLICK_QUEUE_COLOUR is no setting of aaiclick-queue$"),
        ({"LEASE_SECONDS": "0.5"}, r"LEASE_SECONDS = '0.5': give a number from 1 to 31,622,400 \(A worker silent"),
        ({"LEASE_SECONDS": "soon"}, "LEASE_SECONDS = 'soon': give a number from 1 to"),
        ({"HEARTBEAT_SECONDS": "0"}, "HEARTBEAT_SECONDS = '0': give a number above 0 to 31,622,400"),
        ({"LEASE_SECONDS": "nan"}, "AAICLICK_QUEUE_LEASE_SECONDS"),
        ({"LEASE_SECONDS": "1e12"}, "AAICLICK_QUEUE_LEASE_SECONDS"),
        ({"GRACE_SECONDS": "-1"}, "AAICLICK_QUEUE_GRACE_SECONDS = '-1'"),
        ({"MAX_ATTEMPTS": "0"}, "AAICLICK_QUEUE_MAX_ATTEMPTS = '0'"),
        (
            {"HEARTBEAT_SECONDS": "20"},
            "AAICLICK_QUEUE_HEARTBEAT_SECONDS 20 is more than half of AAICLICK_QUEUE_LEASE_SECONDS 30.*most 15",
        ),
        ({"POLL_MIN_SECONDS": "1"}, "AAICLICK_QUEUE_POLL_MIN_SECONDS 1 is above AAICLICK_QUEUE_POLL_MAX_SECONDS 0.25"),
        ({"POSTGRES_URL": "mysql://ada:secret@db/x"}, "AAICLICK_QUEUE_POSTGRES_URL: give a URL that starts with"),
        ({"POSTGRES_URL": "postgresql://ada:secret@db:port/x"}, "AAICLICK_QUEUE_POSTGRES_URL: its port is no number"),
        ({"POSTGRES_URL": "postgresql://ada:secret/7@db/x"}, "AAICLICK_QUEUE_POSTGRES_URL: its port is no number"),
        ({"POSTGRES_URL": "postgresql://[secret@db/x"}, "AAICLICK_QUEUE_POSTGRES_URL: this is no URL"),
        (
            {"REDIS_URL": "http://:secret@cache"},
            "AAICLICK_QUEUE_REDIS_URL: give a URL that starts with one of redis://",
        ),
        ({"POSTGRES_SCHEMA": 'x"; DROP'}, "AAICLICK_QUEUE_POSTGRES_SCHEMA"),
        ({"POSTGRES_SCHEMA": "Big"}, "AAICLICK_QUEUE_POSTGRES_SCHEMA"),
        ({"POSTGRES_POOLER": "session"}, "AAICLICK_QUEUE_POSTGRES_POOLER = 'session': .*'none' or 'transaction'"),
        ({"REDIS_PREFIX": "a b"}, "AAICLICK_QUEUE_REDIS_PREFIX"),
        ({"LOG_LEVEL": "LOUD"}, "AAICLICK_QUEUE_LOG_LEVEL = 'LOUD'"),
        ({"PREFETCH": "perhaps"}, "AAICLICK_QUEUE_PREFETCH"),
    ],
)
def test_a_refusal_names_the_variable_and_what_is_allowed(environ: dict[str, str], words: str) -> None:
    given = {f"AAICLICK_QUEUE_{name}": value for name, value in environ.items()}
    with pytest.raises(SettingsError, match=f"(?s){words}") as refused:
        Settings.load(given)
    assert "secret" not in str(refused.value)


def test_several_mistakes_are_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"MAX_ATTEMPTS.*; .*LOST_LIMIT"):
        Settings.load({}, max_attempts=0, lost_limit=0)


def test_unknown_and_wrong_variables_are_told_at_once() -> None:
    environ = {"LESE": "5", "FOO": "1", "MAX_ATTEMPTS": "0"}
    with pytest.raises(SettingsError, match=r"LESE is no.*; .*FOO is no.*; .*MAX_ATTEMPTS = '0'"):
        Settings.load({f"AAICLICK_QUEUE_{name}": value for name, value in environ.items()})


@pytest.mark.parametrize(
    "url", ["postgresql:///x?host=/run", "postgresql://a:b@[::1]:5432/x", "postgresql://a:b@one:5432,two/x"]
)
def test_hosts_of_every_form_are_taken(url: str) -> None:
    assert Settings.load({}, postgres_url=url).postgres_url == url


def test_an_argument_that_is_no_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"(?i)postgres_urll"):
        Settings.load({}, postgres_urll="postgresql:///x")


def test_settings_do_not_change() -> None:
    with pytest.raises(pydantic.ValidationError):
        Settings.load({}).lease_seconds = 5


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:secret@db:5432/shop", "postgresql://ada:***@db:5432/shop"),
        ("postgresql://ada@db/shop", "postgresql://ada@db/shop"),
        ("postgresql://db/shop", "postgresql://db/shop"),
        ("postgresql://ada:p%40ss@w@db/shop", "postgresql://ada:***@db/shop"),
        ("postgresql://ada:se/cret@db/shop", "postgresql://ada:***@db/shop"),
        ("redis://:secret@cache:6379/0", "redis://:***@cache:6379/0"),
        ("postgresql:///shop?host=/run/postgresql", "postgresql:///shop?host=/run/postgresql"),
        ("postgresql:///shop?user=ada&password=secret", "postgresql:///shop?user=ada&password=***"),
        ("postgresql://a:secret@one:5432,two:5433/shop", "postgresql://a:***@one:5432,two:5433/shop"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_passwords_are_not_in_the_representation() -> None:
    settings = Settings.load({}, postgres_url="postgresql://ada:secret@db/x", redis_url="redis://:secret@cache")
    assert "secret" not in repr(settings) + settings.postgres_shown + settings.redis_shown


@pytest.mark.parametrize("given", [{"heartbeat_seconds": 1, "lease_seconds": 2}, {"lease_seconds": 9}])
def test_the_heartbeat_fits_the_lease(given: dict[str, Any]) -> None:
    settings = Settings.load({}, **given)
    assert 0 < settings.heartbeat <= settings.lease_seconds / 2
