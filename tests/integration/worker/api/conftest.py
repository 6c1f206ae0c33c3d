"""Tables of tests run over both transports."""

import pytest

from support.platform.transports import BOTH


@pytest.fixture(params=BOTH)
def carrier(request: pytest.FixtureRequest) -> str:
    """Name what carries the calls."""
    return str(request.param)
