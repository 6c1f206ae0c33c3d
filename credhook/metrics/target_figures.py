"""Figures of one process: its version, the state of Redis, and its certificate."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from credhook.certificate import valid_until
from credhook.store.announcements import version
from credhook.store.health import Check


class TargetFigures:
    """The figures of one target. Alerts use `min` over all targets."""

    def __init__(
        self, examine: Callable[[], Awaitable[Sequence[Check]]], *, part: str, certificate: Path | None = None
    ) -> None:
        """Read the certificate once. `part` is `receiver` or `worker`."""
        self._examine = examine
        self._part = part
        self._expires = valid_until(certificate).timestamp() if certificate else None

    async def __call__(self) -> list[Metric]:
        """Return all figures."""
        checks = {check.name: check for check in await self._examine()}
        redis = checks.pop("redis", None)
        ready = not any(check.failed for check in (*checks.values(), *([redis] if redis else [])))
        up = GaugeMetricFamily("credhook_up", "1 if /readyz says ready, else 0.", labels=["part"])
        up.add_metric([self._part], ready)
        build = GaugeMetricFamily("credhook_build_info", "1 for the version that runs.", labels=["part", "version"])
        build.add_metric([self._part, version()], 1)
        answers = redis is None or redis.passed
        reached = GaugeMetricFamily("credhook_redis_up", "1 if Redis answers, else 0.", answers)
        passed = GaugeMetricFamily(
            "credhook_redis_check",
            "1 if the check of Redis passes, else 0; see /readyz.",
            labels=["check", "severity"],
        )
        for check in checks.values():
            passed.add_metric([check.name, "warning" if check.warning else "critical"], check.passed)
        found: list[Metric] = [up, build, reached, *([passed] if checks else [])]
        if self._expires is not None:
            expires = GaugeMetricFamily(
                "credhook_certificate_expiry_timestamp_seconds",
                "When the certificate expires, in seconds since the epoch.",
                labels=["part"],
            )
            expires.add_metric([self._part], self._expires)
            found.append(expires)
        return found
