"""The handler against sites on this machine."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from enrolment import connected, enrol

from credhook.testing import assert_idempotent, event, run

COMPLETED = "openid4vc.issuance.completed"


class Sites:
    """Three sites, which note what they are sent. `busy`: a site that answers 503 once."""

    def __init__(self) -> None:
        self.enrolled: list[str] = []
        self.busy = ""
        sites = self

        class Site(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                site = self.path.split("/")[1]
                is_busy, sites.busy = site == sites.busy, "" if site == sites.busy else sites.busy
                if not is_busy:
                    sites.enrolled.append(site)
                self.send_response(503 if is_busy else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Site)


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    sites = Sites()
    root = f"http://127.0.0.1:{sites.server.server_port}"
    monkeypatch.setenv("ENROLMENT_SITES", " ".join(f"{root}/{name}" for name in "abc"))
    thread = threading.Thread(target=sites.server.serve_forever)
    thread.start()
    yield sites
    sites.server.shutdown()
    sites.server.server_close()
    thread.join()


def test_next_attempt_goes_on_at_the_busy_site(sites: Sites) -> None:
    sites.busy = "b"
    result = run(enrol, event(COMPLETED), attempts="until settled", state=connected)
    assert (result.outcome, result.attempts, result.progress) == ("done", 2, 3)
    assert sites.enrolled == ["a", "b", "c"]


def test_attempt_begins_where_an_earlier_process_ended(sites: Sites) -> None:
    assert run(enrol, event(COMPLETED), progress=2, state=connected).outcome == "done"
    assert sites.enrolled == ["c"]


def test_it_may_run_again(sites: Sites) -> None:
    async def fresh() -> AsyncIterator[httpx.AsyncClient]:
        sites.enrolled.clear()
        async with asynccontextmanager(connected)() as client:
            yield client

    # A site that gets the same key twice enrols once.
    assert_idempotent(enrol, event(COMPLETED), fresh=fresh, effects=lambda: sorted(set(sites.enrolled)))
