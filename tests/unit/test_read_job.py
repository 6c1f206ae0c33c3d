"""Which jobs are ours, judged by what their `data` says."""

import json
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest

from credhook.store.job import JOB_FUNCTION, job_fields, job_id
from credhook.worker.queue.claim import read_job

OURS: list[Any] = [JOB_FUNCTION, None, [], {}]


def packed(content: Any) -> bytes:
    return zlib.compress(json.dumps(content).encode())


@pytest.mark.parametrize("event_id", ["m1", "m:1", "m.1", "x" * 256, "é", "\udcff"])
def test_a_job_as_we_write_it_or_as_rq_packs_it_anew_is_ours(event_id: str) -> None:
    data = job_fields("q", datetime.now(UTC))["data"]
    assert isinstance(data, bytes)
    assert read_job("q", job_id("q", event_id), data) == event_id
    assert read_job("q", job_id("q", event_id), packed(OURS)) == event_id


@pytest.mark.parametrize(
    "job",
    [
        job_id("other", "m1"), job_id("q", "m1") + ".", "m1", "e-m1", "", "e", "x",
        job_id("q", "m:1") + "0", job_id("q", "m:1")[:10] + "zz", job_id("q", "m:1")[:10] + b"m1".hex(),
    ],
)  # fmt: skip
def test_the_job_of_another_queue_or_of_another_form_is_not_ours(job: str) -> None:
    assert read_job("q", job, packed(OURS)) is None


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
        packed(["os.system", None, [], {}]),
        packed([JOB_FUNCTION, "x", [], {}]),
        packed([JOB_FUNCTION, None, [], {"a": 1}]),
        packed([JOB_FUNCTION, None, ["m1"], {}]),
        packed([JOB_FUNCTION, None, {"m1": 1}, {}]),
        packed([JOB_FUNCTION, None, "m1", {}]),
    ],
)
def test_any_other_is_not_and_raises_nothing(data: bytes) -> None:
    assert read_job("q", job_id("q", "m1"), data) is None
