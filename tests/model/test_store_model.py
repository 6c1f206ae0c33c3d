"""Ninety histories of the store, the same each time. `make model` looks for others until it is stopped."""

from collections import Counter

import pytest
from hypothesis.stateful import run_state_machine_as_test
from model.explore import histories_over, quiet, settings_for
from redis import Redis

pytestmark = pytest.mark.usefixtures("in_memory")


def test_histories_keep_the_promises_of_the_store(redis_client: Redis) -> None:
    counts = Counter[tuple[str, ...]]()
    with quiet():
        run_state_machine_as_test(histories_over(redis_client, counts), settings=settings_for(90, repeatable=True))
    met = {name[1] for name in counts if name[0] == "rule"}
    assert {"take none", "end as done", "end as waiting", "sweep", "replay done: replayed", "erase accepted"} <= met
