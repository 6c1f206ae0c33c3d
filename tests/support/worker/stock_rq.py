"""RQ as it is shipped: its command, and its worker on our queue."""

import sys
from pathlib import Path

from support.process.commands import run
from support.process.serving import Process
from support.worker.harness import Workers

#: Options with which RQ's worker takes our jobs alone.
OUR_JOBS = ("--job-class", "credhook.worker.process.rq_job.EventJob")

RQ = str(Path(sys.executable).parent / "rq")


def rq(*arguments: str) -> str:
    """Return what `rq …` prints, on either stream."""
    done = run(RQ, *arguments)
    done.check_returncode()
    return done.stdout + done.stderr


def stock_worker(workers: Workers, *options: str, **settings: str) -> Process:
    """Start `rq worker` on our queue."""
    arguments = ("worker", "--url", workers.redis_url, "--serializer", "json", *options, "credhook")
    environment = {"PYTHONPATH": str(workers.folder), **workers.environment, **settings}
    return Process(workers.folder / "stock.log", RQ, *arguments, environment=environment)
