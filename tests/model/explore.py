"""`make model`: histories of the store on all cores, until one breaks a promise or somebody stops it.

`python -m model.explore HISTORIES` makes so many, the same each time. The suite does that in a process of its own,
because the test kit's watch over blocking calls would stay in force, and would slow each call of Redis down.
"""

import itertools
import multiprocessing
import os
import queue
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import click
import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from model.machine import Histories
from redis import Redis

from credhook.sandbox.local.environment import local_redis
from credhook.store import State

#: States in which an event may stand beside a rule. Nothing in a history makes an event unreadable.
_STATES: Final = sorted(state.value for state in State if state is not State.UNREADABLE)
#: Rules that a history has at most, and histories between two reports.
_STEPS: Final = 40
_HISTORIES: Final = 100


def settings_for(histories: int, *, repeatable: bool = False) -> settings:
    """Return how to look for a history that breaks a promise. One that is `repeatable` looks at the same each time."""
    return settings(
        max_examples=histories,
        stateful_step_count=_STEPS,
        derandomize=repeatable,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def histories_over(redis: Redis, counts: "Counter[tuple[str, ...]]") -> type[Histories]:
    """Return the state machine over this Redis, which it empties. It counts what happens, and in which states."""
    return type("Histories", (Histories,), {"redis": redis, "counts": counts})


@contextmanager
def _empty_redis() -> Iterator[Redis]:
    """Yield a Redis without a file. Log lines are kept back: each fault would have some."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as folder, local_redis(Path(folder)) as url, Redis.from_url(url) as redis:
        redis.config_set("appendonly", "no")
        yield redis


def _explore(reports: "multiprocessing.Queue[Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; `main` ends these.
    counts = Counter[tuple[str, ...]]()
    with _empty_redis() as redis:
        for _ in itertools.count():
            run_state_machine_as_test(histories_over(redis, counts), settings=settings_for(_HISTORIES))
            reports.put(counts.copy())
            counts.clear()


def repeat(histories: int) -> None:
    """Make so many histories, the same each time. Print the rules that were met."""
    counts = Counter[tuple[str, ...]]()
    with _empty_redis() as redis:
        run_state_machine_as_test(histories_over(redis, counts), settings=settings_for(histories, repeatable=True))
    for rule in sorted({name[1] for name in counts if name[0] == "rule"}):
        click.echo(rule)


@click.command()
@click.argument("histories", type=int, required=False)
def main(*, histories: int | None) -> None:
    """Look for histories on all cores. Print what was met, and beside which states of events.

    With HISTORIES, make so many, the same each time.
    """
    if histories is not None:
        repeat(histories)
        return
    reports: multiprocessing.Queue[Any] = multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=_explore, args=(reports,), daemon=True) for _ in range(os.cpu_count() or 1)
    ]
    for worker in workers:
        worker.start()
    counts, began = Counter[tuple[str, ...]](), time.monotonic()
    try:
        while all(worker.is_alive() for worker in workers):
            with suppress(queue.Empty):  # One that has found something prints it, and reports no more.
                counts += reports.get(timeout=5)
                histories = sum(number for what, number in counts.items() if what[0] == "history")
                click.echo(f"{histories:,} histories, {counts['step',]:,} steps, {time.monotonic() - began:,.0f} s")
    except KeyboardInterrupt:
        pass
    for kind, what in sorted(name for name in counts if len(name) == 2):
        click.echo(f"{kind}, {what}: {counts[kind, what]:,}")
    rules = Counter[str]()
    for name, number in counts.items():
        if name[0] == "rule":
            rules[name[1]] += number
    for rule, number in sorted(rules.items()):
        never = ", ".join(state for state in _STATES if ("rule", rule, state) not in counts)
        click.echo(f"{rule}: {number:,}{never and f'; never beside: {never}'}")


if __name__ == "__main__":
    main()
