"""The sandbox as a client sees it, and as whoever it delivers to."""

from collections.abc import Iterator

import httpx
import pytest
import trustme
from asking import authorized
from receiving import Receiver, receiving
from serving import Platform


@pytest.fixture(scope="module")
def api(sandbox: Platform) -> Iterator[httpx.Client]:
    with authorized(sandbox) as client:
        yield client


@pytest.fixture
def swept(sandbox: Platform) -> Iterator[None]:
    """Afterwards the sandbox has no faults and no endpoints, as it was before."""
    yield
    sandbox.clear()
    with authorized(sandbox) as api:
        for endpoint in api.get("/me-creds/api/endpoints").json():
            api.delete(f"/me-creds/api/endpoints/{endpoint['id']}")


@pytest.fixture
def receiver(authority: trustme.CA) -> Iterator[Receiver]:
    with receiving(authority.issue_cert("127.0.0.1")) as receiver:
        yield receiver
