"""An ordeal beside a platform that is told what to answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ordeal import Ordeal, Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub().running() as stub:
        yield stub


@pytest.fixture
def ordeal(tmp_path: Path, redis_url: str, stub: Stub) -> Iterator[Ordeal]:
    ordeal = Ordeal(tmp_path, redis_url, stub)
    yield ordeal
    ordeal.redis.close()
