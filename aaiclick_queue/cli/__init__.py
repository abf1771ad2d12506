"""The command line, `aaiclick-queue`. Heavy imports wait inside the commands, so that help appears at once."""

from __future__ import annotations

import click

from .. import __version__
from .backfilling import backfill
from .bulk import priority, purge, queue_move, retry, task_move, unblock
from .explaining import explain
from .failing import failures
from .fleet import fleet
from .health import health, metrics
from .job_changes import cancel, clear, rerun
from .job_changes import pause as pause_job
from .job_changes import resume as resume_job
from .job_changes import retry as retry_job
from .job_running import run_job
from .job_waiting import wait
from .jobs import job
from .limiting import key, limit, limits, pause, resume, task_limit
from .local import local
from .logs import task_logs
from .operating import operation
from .program import Program, verbose_option
from .pruning import prune
from .queues import queue
from .registering import register_job
from .schedules import registered_job
from .server import server
from .service import background, worker
from .setup import completion, config, demo, doctor, migrate
from .tasks import task
from .timing import job_timeline, task_timeline
from .tokens import token
from .top import top
from .workers import workers

__all__ = ["main"]


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
    epilog="""\b
Examples:
  aaiclick-queue demo                        see it work, no server needed
  aaiclick-queue worker -A tasks             run the tasks of tasks.py
  aaiclick-queue fleet up workers/fleet.toml groups of workers, kept running
  aaiclick-queue task enqueue tasks.add --kwargs '{"a": 1, "b": 2}' --wait
  aaiclick-queue register-job tasks.report --cron "0 8 * * *"
  aaiclick-queue local start -A tasks        Postgres, a worker and the dashboard, all here
  aaiclick-queue top                         what waits, what runs, how fast
  aaiclick-queue task get 12345678           everything about one task

\b
Settings are environment variables, AAICLICK_QUEUE_*; `aaiclick-queue config` shows them all.
Exit codes: 0 done, 1 failed or unhealthy, 2 usage, 3 nothing matched, 4 not found,
  69 Postgres unreachable, 78 bad settings, 130/143 ended by a signal.""",
)
@click.version_option(__version__, prog_name="aaiclick-queue", message="%(prog)s %(version)s")
@verbose_option
def main() -> None:
    """A distributed task queue: Postgres is the truth, Redis only wakes workers up."""


for command in (purge, queue_move, limit, limits):
    queue.add_command(command)
for command in (job_timeline, wait, cancel, retry_job, rerun, pause_job, resume_job):
    job.add_command(command)
for command in (retry, task_move, priority, unblock, task_limit, pause, resume, task_timeline):
    task.add_command(command)
for command in (task_logs, clear, explain):
    task.add_command(command)
registered_job.add_command(backfill)
for command in (demo, migrate, worker, fleet, background, top, queue, task, job, key, operation, workers, prune):
    main.add_command(command)
for command in (register_job, run_job, registered_job, failures, server, local, token):
    main.add_command(command)
for command in (doctor, health, metrics, config, completion):
    main.add_command(command)
