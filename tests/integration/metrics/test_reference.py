"""deploy/METRICS.md against what is exported: each metric has its row, word for word, and no other row is there."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import trustme
from prometheus_client import REGISTRY, Metric
from prometheus_client.metrics import MetricWrapperBase
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

import credhook.receiver.metrics
import credhook.worker.metrics  # noqa: F401  Likewise.
from credhook.metrics.figures import QueueFigures, TargetFigures
from credhook.ops.verdict import Outside, ok
from credhook.store import State
from credhook.store.health import ask, examine
from credhook.worker.process.admin import PlatformFigures
from support.checkout import ROOT
from support.process.scraping import worker_settings
from support.store.stored_events import plant
from support.store.stores import INDEX, store_on

PAGE = (ROOT / "deploy" / "METRICS.md").read_text()


def counted() -> Iterator[str]:
    """The rows of what processes count; prometheus_client adds some of its own, and tests of counting, too."""
    for one in REGISTRY._collector_to_names:
        if isinstance(one, MetricWrapperBase) and one._name.startswith("credhook_"):
            (family,) = one.describe()
            yield row(family, one._labelnames)


def row(family: Metric, labels: tuple[str, ...]) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    named = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {family.type} | {named} | {family.documentation} |"


async def test_every_metric_has_its_row_and_no_row_is_of_one_that_is_gone(
    async_redis: AsyncRedis, redis_client: Redis, tmp_path: Path
) -> None:
    settings = worker_settings()
    certificate = tmp_path / "certificate.pem"
    trustme.CA().issue_cert("inbox.example").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    plant(redis_client, "m1", State.WAITING)
    redis_client.sadd("rq:queues", INDEX.jobs)
    redis_client.hset(INDEX.arrivals, "h1", "1 1 60")
    redis_client.set(INDEX.outside, Outside(at=1, findings=(ok("public_url.reached", ""),)).model_dump_json())
    examining = partial(examine, partial(ask, store_on(async_redis)), durability="strict")
    asked = [
        *await TargetFigures(examining, part="worker", certificate=certificate)(),
        *await QueueFigures(store_on(async_redis))(),
        *await PlatformFigures(store_on(async_redis), settings)(),
    ]
    figures = [row(family, tuple(family.samples[0].labels)) for family in asked]
    rows = re.findall(r"^\| `credhook_.*$", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted([*counted(), *figures])
