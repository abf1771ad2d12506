"""workers/monitoring: taken by Prometheus' own checker and by a real Prometheus, and only of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aaiclick_queue.metric_families import FAMILIES, PREFIX
from aaiclick_queue.settings import Settings
from aaiclick_queue.testing.redis_server import free_port
from tests.cli.running import PROJECT, environment, program, run
from tests.operate.looking import get, wait_for
from tests.project.commands import refusal
from tests.project.deployables import WORKERS
from tests.project.metrics_table import PAGE, metrics_table, parts
from tests.servers import find_tool

MONITORING = WORKERS / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
GRAFANA = MONITORING / "grafana.json"
RUNBOOK = PROJECT / "docs" / "alerts.md"
SUFFIXES = ("_bucket", "_count", "_sum")
RECORDED = re.compile(r"\bqueue:\w+(?::\w+)?")
# Names of the seeds, and those that take the place of others.
SEEDS = [
    "jobs_created_total",
    "jobs_completed_total",
    "jobs_failed_total",
    "job_duration_seconds",
    "tasks_created_total",
    "tasks_completed_total",
    "tasks_failed_total",
    "task_duration_seconds",
    "task_queue_depth",
    "workers_active",
    "worker_task_execution_time_seconds",
    "worker_heartbeat_age_seconds",
]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(GRAFANA.read_text())["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard, with what Grafana puts in the places of its variables."""
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    made = [(one["name"], one["expr"]) for one in json.loads(GRAFANA.read_text())["annotations"]["list"]]
    return [(title, text.replace("$queue", ".*").replace("$entrypoint", ".*")) for title, text in found + made]


def unknown(expression: str) -> set[str]:
    """Names in an expression that are no metrics of ours."""
    names = set(re.findall(rf"\b{PREFIX}\w+", expression))
    plain = {name.removeprefix(PREFIX) for name in names}
    for suffix in SUFFIXES:
        plain = {
            name.removesuffix(suffix)
            if name.endswith(suffix) and FAMILIES.get(name.removesuffix(suffix), None) is not None
            else name
            for name in plain
        }
    return plain - set(FAMILIES)


# Words.


def test_the_metrics_of_the_seeds_have_their_names() -> None:
    assert [name for name in SEEDS if name not in FAMILIES] == []


@pytest.mark.parametrize("scope", ["process", "state"])
def test_the_page_shows_every_metric_as_the_code_has_it(scope: Any) -> None:
    assert parts(PAGE.read_text(), scope)[1] == metrics_table(scope), "run: python -m tests.project.metrics_table"


def test_names_follow_the_conventions() -> None:
    for family in FAMILIES.values():
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert (family.buckets != ()) == (family.kind == "histogram"), family.name
        if family.kind == "histogram":
            assert family.name.endswith(("_seconds", "_bytes")), family.name
        assert family.text.endswith("."), family.name


def test_rules_and_panels_speak_of_metrics_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for name, text in [*((rule.get("alert", ""), rule["expr"]) for rule in rules()), *queries()]:
        assert unknown(text) == set(), f"{name}: {text}"
        assert set(RECORDED.findall(text)) <= recorded, f"{name}: {text}"


def test_every_alert_has_its_section_and_a_first_command_that_works() -> None:
    text = RUNBOOK.read_text()
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert notes["runbook"] == f"docs/alerts.md#{name.lower()}"
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"First command: `{notes['command']}`" in section
        assert f"`{rule['labels']['severity']}`" in section
        assert rule.get("for", "at once") in section
        assert refusal(notes["command"].split()[1:]) is None, notes["command"]


def test_the_dashboard_has_six_rows() -> None:
    dashboard = json.loads(GRAFANA.read_text())
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == ["Health", "Queues", "Tasks", "Capacity", "Delivery", "Database"]
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "queue", "entrypoint"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


# Prometheus' own word.


def promtool(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(find_tool("promtool")), *map(str, arguments)], input=stdin, capture_output=True, text=True
    )


@pytest.mark.needs_tool("promtool")
def test_promtool_takes_the_rules_their_tests_and_the_configuration(tmp_path: Path) -> None:
    config = shipped(tmp_path / "monitoring", worker=8081, server=5555, token="as it was printed")
    for call in (
        ("check", "rules", ALERTS),
        ("test", "rules", MONITORING / "alerts_test.yaml"),
        ("check", "config", config),
    ):
        ran = promtool(*call)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.needs_tool("promtool")
def test_promtool_would_tell_of_a_mistake(tmp_path: Path) -> None:
    broken = tmp_path / "alerts.yaml"
    broken.write_text(ALERTS.read_text().replace("> 0.05 and", "> 0.05 andd"))
    assert promtool("check", "rules", broken).returncode != 0


# A real scrape.


def shipped(folder: Path, *, worker: int, server: int, token: str) -> Path:
    """The files that we ship, of other addresses and a quicker pace, and the token where they look for it."""
    shutil.copytree(MONITORING, folder)
    (folder / "prometheus.token").write_text(token)
    file = folder / "prometheus.yaml"
    text = file.read_text().replace("server:5555", f"127.0.0.1:{server}").replace("interval: 15s", "interval: 1s")
    file.write_text(re.sub(r'"fleet:8081".*(?=\])', f'"127.0.0.1:{worker}"', text))
    return file


class Prometheus:
    """One that runs, and can be asked."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **given: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(given)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, text: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=text)["result"]
        return found


@pytest.fixture
def scraping(settings: Settings, tmp_path: Path) -> Iterator[tuple[Prometheus, int, int]]:
    """A Prometheus that scrapes a real worker, which has run a task and a job, and a server that asks for tokens."""
    worker, server, own = free_port(), free_port(), free_port()
    env = environment(settings, HOME=str(tmp_path / "home"))
    made = run("token", "create", "prometheus", "--role", "reader", env=env)
    config = shipped(tmp_path / "monitoring", worker=worker, server=server, token=made.stdout)
    command = [
        str(find_tool("prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    with program("worker", "-A", "tests.cli.cli_tasks", "--probe-port", str(worker), env=env) as working:
        serve = [sys.executable, "-m", "aaiclick_queue", "server", "--port", str(server), "--auth", "tokens"]
        served = subprocess.Popen(serve, env=env, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        prometheus = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: get(worker, "/readyz")[0] == 200)
            wait_for(lambda: get(server, "/readyz")[0] == 200)
            ran = run("task", "enqueue", "tests.cli.cli_tasks.add", "--kwargs", '{"a": 2, "b": 3}', "--wait", env=env)
            assert ran.returncode == 0, ran.stderr
            ran = run(
                "run-job",
                "sums",
                "--entrypoint",
                "tests.cli.cli_tasks.add",
                "--kwargs",
                '{"a": 2, "b": 3}',
                "--wait",
                env=env,
            )
            assert ran.returncode == 0, ran.stderr
            yield Prometheus(own), worker, server
        finally:
            for process in (prometheus, served):
                process.terminate()
                process.wait(30)
            working.process.terminate()
            assert working.ends() == 0


def jobs_of_panels(prometheus: Prometheus) -> set[str]:
    """The names of jobs by which the dashboard draws its lines, as Prometheus has them."""
    [found] = {name for _, text in queries() for name in re.findall(r"by \((\w*job)\) \(rate\(\w+_jobs_c", text)}
    return {row["metric"].get(found, "") for row in prometheus.query("aaiclick_queue_jobs_completed_total == 1")}


@pytest.mark.needs_tool("promtool")
@pytest.mark.needs_tool("prometheus")
def test_a_real_prometheus_scrapes_us_and_answers_every_panel(
    scraping: tuple[Prometheus, int, int], tmp_path: Path
) -> None:
    prometheus, worker, server = scraping
    assert get(server, "/metrics")[0] == 401
    token = (tmp_path / "monitoring" / "prometheus.token").read_text().strip()
    for port, shows in ((worker, {}), (server, {"Authorization": f"Bearer {token}"})):
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=shows)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            ran = promtool("check", "metrics", stdin=answer.read().decode())
        assert ran.returncode == 0, ran.stdout + ran.stderr
    wait_for(lambda: len(prometheus.query("up == 1")) == 2)
    wait_for(
        lambda: prometheus.query('aaiclick_queue_tasks_completed_total{entrypoint="tests.cli.cli_tasks.add"} == 2')
    )
    wait_for(lambda: prometheus.query('aaiclick_queue_up{component="postgres"} == 1'))
    wait_for(lambda: jobs_of_panels(prometheus) == {"sums"})
    for _, text in queries():
        prometheus.query(text)  # an HTTPError for what it does not take
    served = set(prometheus.ask("label/__name__/values"))
    expected = {
        "build_info",
        "tasks_claimed_total",
        "task_wait_seconds_bucket",
        "oldest_ready_age_seconds",
        "workers_active",
    }
    assert {PREFIX + name for name in expected} | {"process_start_time_seconds"} <= served
    loaded = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    wait_for(lambda: all(r["health"] == "ok" for g in prometheus.ask("rules")["groups"] for r in g["rules"]))
    assert len(loaded) == len(rules())
    [info] = prometheus.query("count by (schema) (aaiclick_queue_build_info)")
    assert info["value"][1] == "2"
