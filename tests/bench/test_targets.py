"""Which targets are met."""

from bench.results import LOADS, Latency, Results, Throughput
from bench.targets import targets


def results(**rates: float) -> Results:
    measured = {name.replace("_", "-"): [Throughput(rate, 50.0, 60.0)] for name, rate in rates.items()}
    return Results({}, {name: name for name in measured}, throughput=measured)


def met(measured: Results) -> dict[str, bool]:
    return {target.what: target.met for target in targets(measured)}


def test_each_ratio_has_its_own_bound() -> None:
    rates = {"strict": 100.0, "standard": 110.0, "fastify_bullmq": 99.0, "fastapi_celery": 11.0, "bare": 190.0}
    assert met(results(**rates)) == {
        "strict / fastify-bullmq": True,
        "strict / fastapi-celery": False,
        "strict / bare": False,
        "strict / standard": True,
        "most memory of the receiver, MiB": True,
    }


def test_latency_is_compared_at_the_same_rate() -> None:
    measured = results(strict=100.0, bare=150.0)
    measured.latency["strict"] = {str(part): [Latency(100 * part, 1.0, 3.1, 0.0, None)] for part in LOADS}
    measured.latency["bare"] = {str(part): [Latency(150 * part, 1.0, 9.0, 0.0, None)] for part in LOADS}
    measured.same_rate.append(Latency(50.0, 0.5, 1.0, 0.0, None))
    assert met(measured)["p99 at half load / bare Starlette's at the same rate"] is False


def test_the_median_of_the_rounds_counts_but_the_highest_memory() -> None:
    measured = results(strict=100.0, bare=150.0)
    measured.throughput["strict"] += [Throughput(1.0, None, None), Throughput(100.0, 50.0, 91.0)]
    assert met(measured) == {"strict / bare": True, "most memory of the receiver, MiB": False}


def test_a_ledger_is_flat_within_a_tenth() -> None:
    measured = results(strict=100.0)
    # The second round on a slower machine, which says nothing.
    small = [Throughput(rate, None, None) for rate in (100.0, 80.0, 100.0)]
    large = [Throughput(rate, None, None) for rate in (89.0, 79.0, 88.0)]
    measured.ledger = {"10": small, "1000": large}
    assert met(measured)["with 1,000 ledger records / with 10"] is False
    measured.ledger["1000"][0] = Throughput(91.0, None, None)
    assert met(measured)["with 1,000 ledger records / with 10"] is True
