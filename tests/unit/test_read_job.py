"""Which jobs are ours, judged by what their `data` says."""

import json
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest

from credhook.store.job import JOB_FUNCTION, job_data, job_fields, job_id
from credhook.worker.queue.claim import read_job

OURS: list[Any] = [JOB_FUNCTION, None, ["m1"], {}]


def packed(content: Any) -> bytes:
    return zlib.compress(json.dumps(content).encode())


@pytest.mark.parametrize("event_id", ["m1", "m:1", "m.1"])
def test_a_job_as_we_write_it_or_as_rq_packs_it_anew_is_ours(event_id: str) -> None:
    data = job_data(event_id) or job_fields("q", datetime.now(UTC))["data"]
    assert isinstance(data, bytes)
    assert read_job(job_id(event_id), data) == event_id
    assert read_job(job_id(event_id), packed([JOB_FUNCTION, None, [event_id], {}])) == event_id


def test_one_of_an_event_that_its_id_says_needs_no_more() -> None:
    data = packed([JOB_FUNCTION, None, [], {}])
    assert read_job("e-m1", data) == "m1"
    assert read_job("d-m1", data) is None
    assert read_job("e-m.1", data) is None
    assert read_job("m1", data) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        zlib.compress(b"no JSON"),
        zlib.compress(b"[" * 5_000),
        packed(None),
        packed({}),
        packed(OURS[:3]),
        packed(["os.system", None, ["m1"], {}]),
        packed([JOB_FUNCTION, "x", ["m1"], {}]),
        packed([JOB_FUNCTION, None, ["m1"], {"a": 1}]),
        packed([JOB_FUNCTION, None, ["m1", "m1"], {}]),
        packed([JOB_FUNCTION, None, [""], {}]),
        packed([JOB_FUNCTION, None, [None], {}]),
        packed([JOB_FUNCTION, None, {"m1": 1}, {}]),
        packed([JOB_FUNCTION, None, "m1", {}]),
        packed([JOB_FUNCTION, None, [1], {}]),
        packed([JOB_FUNCTION, None, [["m1"]], {}]),
        packed([JOB_FUNCTION, None, ["\ud800"], {}]),
        packed([JOB_FUNCTION, None, ["m2"], {}]),
    ],
)
def test_any_other_is_not_and_raises_nothing(data: bytes) -> None:
    assert read_job("e-m1", data) is None
