"""Ids are any text: an event with an unusual one goes the whole way, and every tool of ours finds it."""

import json
import re
from html import unescape
from typing import Any
from urllib.parse import unquote

from support import plain
from support.console.console import Console
from support.process.serving import receiver
from support.receiver.signing import body, headers
from support.worker.events_command import Run, listed
from support.worker.fleet_harness import FleetHarness, issuance
from support.worker.harness import PLAIN

#: Webhook-id, resource's id: those that are fetched, then those that cannot stand in a URL.
FETCHED = [
    ("a+b=", "a/b"),
    ("msg/1", "a+b=&c?d#e"),
    ("a@b.example", "my issuance"),
    ("msg with spaces 1 2 3", "50%25 …"),
    ("müll:{}'\"$(id)", "日本/é"),
    ("m" * 129, "a" * 129),
    ("m" * 512, "ä" * 256),
    ("...", "a..b"),
    ("msg.1700000000.x", "{id}"),
]
REFUSED = ["", ".", "x/../y", "a\nb\x00", "a\x85", "ä" * 257, "x" * 9_000]
QUARANTINED = [(f"q{number}", resource_id) for number, resource_id in enumerate(REFUSED)]


def test_any_text_is_an_id_from_the_delivery_to_the_erasure(rig: FleetHarness, events: Run) -> None:
    with receiver(rig.folder, rig.redis_url) as server:
        for webhook_id, resource_id in [*FETCHED, *QUARANTINED] * 2:
            content = body(resource_id=resource_id)
            signed: Any = {name: value.encode() for name, value in headers(webhook_id, content).items()}
            assert plain.post(server.url, content=content, headers=signed).status_code == 202, (webhook_id, resource_id)
    rig.stub.answer = lambda call: issuance(unquote(call.resource))  # Of what follows the last slash.
    rig.plugin(PLAIN)
    with rig.worker() as worker:
        for webhook_id, _ in FETCHED:
            rig.reaches(webhook_id, "done")
        replayed = events("replay", "--yes", FETCHED[3][0], FETCHED[6][0])
        assert replayed.stdout == "replayed 2\n", replayed.output
        for webhook_id, _ in (FETCHED[3], FETCHED[6]):
            assert "replayed" in events("show", webhook_id).stdout
            rig.reaches(webhook_id, "done")
    assert "Traceback" not in worker.text + server.text
    assert (
        f"{len(QUARANTINED)} whose id cannot be fetched" in events("replay", "--yes", "--state", "quarantined").output
    )
    for webhook_id, resource_id in FETCHED:
        shown = json.loads(events("show", "--json", webhook_id).stdout)
        assert (shown["resource_id"], shown["conflicts"]) == (resource_id, []), webhook_id
        assert listed(events("list", "--json", "--resource", resource_id)) == [webhook_id]
    for webhook_id, resource_id in QUARANTINED:
        kept = rig.record(webhook_id)
        assert kept["state"] == "quarantined"
        assert kept["resource"] in {resource_id, "ä" * 256 + "…[cut]", "x" * 512 + "…[cut]"}
    with Console(rig.folder, rig.redis_url) as running, running.operator() as ada:
        for webhook_id, resource_id in FETCHED:
            assert ada.get("/event", params={"id": webhook_id}).status_code == 200
            assert str(ada.get("/events", params={"q": webhook_id}).url.path) == "/event"
            page = ada.get("/events", params={"resource": resource_id}).text
            assert ">done</" in page
            (link,) = re.findall(r'class="id" href="([^"]*)"', page)
            assert ada.get(unescape(link)).status_code == 200
    ids = [webhook_id for webhook_id, _ in [*FETCHED, *QUARANTINED]]
    assert events("erase", "--yes", *ids).exit_code == 0
    assert not [key for key in rig.redis.scan_iter("credhook:credhook:*") if b":event:" in key or b":index:" in key]


def test_an_id_that_no_redis_can_hold_is_no_crash(events: Run) -> None:
    wrong = [(command, id_) for command in ("show", "export", "list", "list --resource") for id_ in ("\udcff", "")]
    for command, id_ in wrong:
        refused = events(*command.split(), id_)
        assert refused.exit_code == 2
        assert "is no id" in refused.output
