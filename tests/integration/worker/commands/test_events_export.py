"""`credhook events export`: an event becomes a test case without personal data, and the test kit reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from credhook.store import State
from credhook.testing import load_event, run
from credhook.worker.commands.export import redacted
from support.platform.platform_settings import leading_to
from support.process.commands import invoke
from support.store.stored_events import plant
from support.store.stores import EVENT
from support.worker.events_command import Run
from support.worker.fleet_harness import Answer, Stub
from support.worker.harness import DATA, Harness

CLAIMS = {"name": "Jane", "birth": "1990-02-03", "age": 36, "isMember": True, "zones": ["Paris"], "a": {"b": ""}}
BLANK = {"name": "redacted", "birth": "2000-01-01", "age": 0, "isMember": False, "zones": ["redacted"], "a": {"b": ""}}


def test_an_exported_event_is_a_test_case(harness: Harness) -> None:
    resource_id = harness.happens("m1", DATA, attributes=CLAIMS)
    harness.redis.hset(EVENT + "m1", "p:test.bad", "3 0")
    done = invoke("events", "export", "m1", environment=harness.environment, folder=harness.folder)
    assert done.returncode == 0, done.stderr
    assert [word for word in ("Jane", "1990", "Paris") if word in done.stdout] == []
    case = harness.folder / "case.json"
    case.write_text(done.stdout)
    event: Any = load_event(case)
    assert (event.type, event.resource_id, event.webhook_id, event.attempt) == (DATA, resource_id, "m1", 3)
    assert event.received_at.tzinfo is not None
    assert event.details.trusted
    assert event.details.credentials[0].attributes == BLANK

    async def handler(event: Any, context: Any) -> None:
        assert await context.api.presentations.get(resource_id) == event.details

    assert run(handler, event).outcome == "done"
    harness.redis.hdel(EVENT + "m1", "p:test.bad")
    harness.sandbox.faults(serverErrors=1)  # It passes.
    fresh = invoke("events", "export", "m1", environment=harness.environment, folder=harness.folder).stdout
    assert fresh == done.stdout.replace('"attempt": 3', '"attempt": 1')
    lost = invoke("events", "export", "m2", environment=harness.environment, folder=harness.folder)
    assert (lost.returncode, lost.stderr) == (1, "Error: the store of the queue credhook has no event m2\n")
    gone = dict(harness.environment, CREDHOOK_PRESENTATION_PATH="/nowhere/{id}")
    lost = invoke("events", "export", "m1", environment=gone, folder=harness.folder)
    assert lost.returncode == 1
    assert lost.stderr.startswith("Error: the platform does not return the details: ")


@pytest.mark.parametrize(("details", "shown"), [
    ({"id": "p", "status": "x", "updatedAt": "2026-01-02"}, {"id": "p", "status": "x", "updatedAt": "2026-01-02"}),
    *([{name: "x"}] * 2 for name in ("format", "exchange", "presentationTemplateId", "createdAt", "expiresAt")),
    ({"revocable": True}, {"revocable": True}),
    ({"error": {"message": "Jane"}, "offerUri": "x://y"}, {"error": {"message": "redacted"}, "offerUri": "redacted"}),
    ({"status": {"of": "Jane"}, "new": [1.5, None]}, {"status": {"of": "redacted"}, "new": [0.0, None]}),
    ({"credentials": [{"type": "t", "isValid": None, "name": "Jane"}, "Jane"]},
     {"credentials": [{"type": "t", "isValid": None, "name": "redacted"}, "redacted"]}),
    ({"credentials": [{"attributes": {"id": "Jane"}}]}, {"credentials": [{"attributes": {"id": "redacted"}}]}),
])  # fmt: skip
def test_only_what_is_known_to_be_harmless_stays(details: dict[str, Any], shown: dict[str, Any]) -> None:
    assert redacted(details) == shown


def test_exported_details_have_the_id_that_the_platform_left_out(events: Run, redis_client: Redis, stub: Stub) -> None:
    plant(redis_client, "m1", State.DONE, DATA, resource="pre_1")
    stub.answer = lambda _: Answer(body={"data": {"status": "verified"}})
    exported = events("export", "m1", **leading_to(stub.url)).stdout
    assert json.loads(exported)["details"] == {"status": "verified", "id": "pre_1"}


def test_a_file_that_holds_no_event_is_named(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"type": "x", "details": {}}', '{"type": "openid4vc.issuance.failed"}'):
        (tmp_path / "case.json").write_text(text)
        with pytest.raises(
            ValueError, match=r"case\.json does not hold an event as `credhook events export` writes it"
        ):
            load_event(tmp_path / "case.json")
