"""RQ as it is shipped: its command, and its worker on our queue."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked_process
from harness import Harness
from serving import Process

RQ = str(Path(sys.executable).parent / "rq")


def rq(*arguments: str) -> str:
    """What `rq …` prints."""
    done = forked_process.run(RQ, *arguments)
    done.check_returncode()
    return done.stdout


@contextmanager
def stock_worker(harness: Harness, *options: str) -> Iterator[Process]:
    """`rq worker` on our queue."""
    arguments = ("worker", "--url", harness.redis_url, "--serializer", "json", *options, "credhook")
    environment = {"PYTHONPATH": str(harness.folder), **harness.environment}
    process = Process(harness.folder / "stock.log", RQ, *arguments, environment=environment)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()
