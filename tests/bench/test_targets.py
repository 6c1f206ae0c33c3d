"""Which targets are met."""

from bench.results import LOADS, Latency, Results, Throughput
from bench.targets import targets


def throughput(rate: float, *, peak: float | None = None) -> Throughput:
    return Throughput(rate, 50.0, peak, redis=30.0, written=800.0)


def results(**rates: float) -> Results:
    measured = {name.replace("_", "-"): [throughput(rate, peak=60.0)] for name, rate in rates.items()}
    return Results({}, {name: name for name in measured}, throughput=measured)


def met(measured: Results) -> dict[str, bool]:
    return {target.what: target.met for target in targets(measured)}


def test_each_ratio_has_its_own_bound() -> None:
    rates = {"strict": 100.0, "standard": 110.0, "fastify_bullmq": 79.0, "fastify_bullmq_everysec": 97.0}
    rates |= {"fastapi_celery": 11.0, "bare": 144.0}
    assert met(results(**rates)) == {
        "strict / fastify-bullmq": True,
        "standard / fastify-bullmq-everysec": False,
        "strict / fastapi-celery": False,
        "strict / bare": False,
        "strict / standard": True,
        "most memory of the receiver, MiB": True,
    }


def test_latency_is_compared_at_the_same_rate() -> None:
    measured = results(strict=100.0, grouped=150.0)
    measured.latency["strict"] = {str(part): [Latency(100 * part, 1.0, 3.1, 0.0, None)] for part in LOADS}
    measured.latency["grouped"] = {str(part): [Latency(150 * part, 1.0, 9.0, 0.0, None)] for part in LOADS}
    measured.same_rate["grouped"] = [Latency(50.0, 0.5, 2.0, 0.0, None)]
    assert met(measured)["p99 at half load / that of grouped at the same rate"] is False
    measured.same_rate["grouped"] = [Latency(50.0, 0.5, 2.1, 0.0, None)]
    assert met(measured)["p99 at half load / that of grouped at the same rate"] is True


def test_the_median_of_the_rounds_counts_but_the_highest_memory() -> None:
    measured = results(strict=100.0, bare=150.0)
    measured.throughput["strict"] += [throughput(1.0), throughput(100.0, peak=91.0)]
    assert met(measured) == {"strict / bare": False, "most memory of the receiver, MiB": False}


def test_a_ledger_is_flat_within_a_tenth() -> None:
    measured = results(strict=100.0)
    # The second round on a slower machine, which says nothing.
    small = [throughput(rate) for rate in (100.0, 80.0, 100.0)]
    large = [throughput(rate) for rate in (89.0, 79.0, 88.0)]
    measured.ledger = {"10": small, "1000": large}
    assert met(measured)["with 1,000 ledger records / with 10"] is False
    measured.ledger["1000"][0] = throughput(91.0)
    assert met(measured)["with 1,000 ledger records / with 10"] is True
