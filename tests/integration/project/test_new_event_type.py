"""A new event type is a row in `credhook/events.py` and in the sandbox's table; a resource is a row and a model."""

import os
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from support.checkout import ROOT
from support.platform.platform_settings import leading_to
from support.platform.scripted_server import answering, ok
from support.process.dev_process import left_running
from support.process.fork_server import ABSENT
from support.project import release

NEW_TYPE = "openid4vc.issuance.revoked"
#: File, old text, and new text.
Change = tuple[str, str, str]
OLD_ROW = 'EventType("openid4vc.issuance.expired", rank=3),\n'
OLD_RULE = '"openid4vc.issuance.expired": EventRule("expired", ("offered",), ("expired", "expired")),\n'
ADD_TYPE: list[Change] = [
    ("credhook/events.py", OLD_ROW, f'{OLD_ROW}        EventType("{NEW_TYPE}", rank=4),\n'),
    (
        "sandbox/events.py",
        OLD_RULE,
        f'{OLD_RULE}    "{NEW_TYPE}": EventRule("revoked", ("completed",), ("revoked", "revoked")),\n',
    ),
]

ORDER = """
PAID = EventType("shop.order.paid", rank=1)
ORDER: Final = Resource(
    "order", "orders", "Order", ("orderId",), "/orders/{id}", (PAID,), states={"paid": ((PAID.name,),)}
)
RESOURCES: Final = (ISSUANCE, PRESENTATION, ORDER)
"""
MODEL = """
class Order(_ResourceDetails):
    sum: int


class ListedResource("""
ADD_RESOURCE: list[Change] = [
    ("credhook/events.py", "RESOURCES: Final = (ISSUANCE, PRESENTATION)\n", ORDER),
    ("worker/api/models.py", "class ListedResource(", MODEL),
]
ACCEPT = """
import asyncio, sys
from credhook.events import Event
from credhook.receiver.inbox import Inbox
from credhook.store.connection import open_redis
from credhook.store.store import Store

async def main():
    inbox = Inbox(Store(open_redis(sys.argv[1]), "credhook", retention=600))
    event = Event.parse(b'{"eventType": "shop.order.paid", "payload": {"orderId": "order-1"}}')
    print((await inbox.accept("msg_1", event)).value)
    await inbox.aclose()

asyncio.run(main())
"""
HANDLER = """
from pathlib import Path
from credhook import Handlers

handlers = Handlers("shop")

@handlers.on("shop.order.paid")
async def ship(event, context):
    again = await context.api.orders.get(event.resource_id)
    Path("shipped").write_text(f"{type(event.details).__name__} {event.details.id} {event.details.sum} {again.status}")
"""


def changed_copy(folder: Path, changes: list[Change]) -> Callable[..., str]:
    """Copy the code, with these changes. Return what runs Python with the copy, and returns what it prints."""
    for name in ("credhook", "receiver", "worker", "sandbox"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    for name, old, new in changes:
        text = (folder / name).read_text()
        assert text.count(old) == 1
        (folder / name).write_text(text.replace(old, new))
    return partial(release.run, sys.executable, "-P", PYTHONPATH=f"{folder}{os.pathsep}{ABSENT}")


def test_new_event_type_needs_only_a_row_in_both_tables(tmp_path: Path) -> None:
    """The demo has an event of each type, and leaves nothing."""
    run = changed_copy(tmp_path / "copy", ADD_TYPE)
    (folder := tmp_path / "folder").mkdir()
    printed = run("-m", "credhook", "demo", folder=folder)
    assert NEW_TYPE in printed
    assert "11 events, each delivered twice and handled exactly once" in printed
    assert printed.count("log.event") == 11
    assert (left_running(folder), list(folder.iterdir())) == ([], [])


def test_new_resource_needs_only_a_row_and_a_model(tmp_path: Path, redis_url: str) -> None:
    run = changed_copy(tmp_path, ADD_RESOURCE)
    (tmp_path / "shop.py").write_text(HANDLER)
    assert run("-c", ACCEPT, redis_url, folder=tmp_path).endswith("accepted\n")
    order = {"id": "order-1", "status": "paid", "sum": 12}
    with answering(lambda *_: ok({"data": order})) as platform:
        settings = {"REDIS_URL": redis_url, "CREDHOOK_HANDLERS": "shop", **leading_to(platform.url)}
        run("-m", "credhook", "worker", "--burst", folder=tmp_path, **settings)
    assert set(platform.targets) == {"/orders/order-1"}
    assert (tmp_path / "shipped").read_text() == "Order order-1 12 paid"
    listed = [{**order, "id": name, "updatedAt": datetime.now(UTC).isoformat()} for name in ("order-1", "order-2")]
    with answering(lambda *_: ok({"data": listed})) as platform:
        command = (
            "-m",
            "credhook",
            "events",
            "backfill",
            "--since",
            "1d",
            "--until",
            "0s",
            "--type",
            "shop.order.paid",
        )
        printed = run(*command, folder=tmp_path, **(settings | leading_to(platform.url)))
    assert "accepted 1 of 2 events" in printed
    assert set(platform.targets) == {"/orders"}
