"""`make model`: histories of the store on all cores, until one breaks a promise or somebody stops it.

Histories come in batches. A batch has a number, and is the same each time. `python -m model.explore BATCHES` makes the
first batches and ends. The suite does that in a process of its own, because the test kit's watch over blocking calls
would slow each call of Redis down.
"""

import itertools
import multiprocessing
import os
import secrets
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import structlog
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from model.machine import Histories
from redis import Redis

from credhook.sandbox.local.environment import local_redis
from credhook.store import State

Counts = Counter[tuple[str, ...]]

#: States in which an event may stand beside a rule. Nothing in a history makes an event unreadable.
_STATES: Final = sorted(state.value for state in State if state is not State.UNREADABLE)
#: After ten histories Hypothesis would make most of them from parts of earlier ones.
SETTINGS: Final = settings(
    max_examples=9,
    stateful_step_count=50,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def look_at(batch: int) -> Counts:
    """Make the histories of a batch over a Redis without a file, and return what they have met."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # Each fault would have lines.
    counts = Counts()
    with tempfile.TemporaryDirectory() as folder, local_redis(Path(folder)) as url, Redis.from_url(url) as redis:
        redis.config_set("appendonly", "no")
        machine = type("Histories", (Histories,), {"redis": redis, "counts": counts})
        try:
            run_state_machine_as_test(seed(batch)(machine), settings=SETTINGS)
        except BaseException as error:
            error.add_note(f"This was batch {batch}.")
            raise
    return counts


def _explore_until_stopped() -> Counts:
    """Explore on all cores that this process may use, and return what was met."""
    counts, began, batches = Counts(), time.monotonic(), itertools.count(secrets.randbelow(2**32))
    ignoring = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal.
    with multiprocessing.Pool(len(os.sched_getaffinity(0)), *ignoring) as pool, suppress(KeyboardInterrupt):
        for met in pool.imap_unordered(look_at, batches):
            counts += met
            histories = sum(number for what, number in counts.items() if what[0] == "history")
            click.echo(f"{histories:,} histories, {counts['step',]:,} steps, {time.monotonic() - began:,.0f} s")
    return counts


@click.command()
@click.argument("batches", type=int, required=False)
def main(*, batches: int | None) -> None:
    """Look for histories on all cores until stopped, or at so many BATCHES. Print what was met, and beside what."""
    counts = sum(map(look_at, range(batches)), Counts()) if batches else _explore_until_stopped()
    for name in sorted(name for name in counts if len(name) < 3):
        click.echo(f"{', '.join(name)}: {counts[name]:,}")
    for rule in sorted({name[1] for name in counts if name[0] == "rule"}):
        never = ", ".join(state for state in _STATES if ("rule", rule, state) not in counts)
        click.echo(f"{rule}: {counts['rule', rule]:,}{never and f'; never beside: {never}'}")


if __name__ == "__main__":
    main()
