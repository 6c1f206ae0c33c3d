"""An rig beside a platform that is told what to answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_harness import FleetHarness, Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub().running() as stub:
        yield stub


@pytest.fixture
def rig(tmp_path: Path, redis_url: str, stub: Stub) -> Iterator[FleetHarness]:
    rig = FleetHarness(tmp_path, redis_url, stub)
    yield rig
    rig.redis.close()
