import pytest

from credhook.events import EVENT_TYPES
from credhook.worker.api.models import Endpoint
from credhook.worker.commands.endpoints import ALL, described, plan, shown

URL = "https://inbox.example/webhooks"
TWO = frozenset({"openid4vc.issuance.completed", "openid4vc.verification.data"})


def endpoint(name: str, url: str = URL, types: tuple[str, ...] | None = None) -> Endpoint:
    return Endpoint(id=name, url=url, filter_types=types)


RIGHT = endpoint("a", types=tuple(sorted(TWO, reverse=True)))
WRONG = endpoint("a", types=("openid4vc.issuance.failed",))
UNFILTERED = [endpoint("a"), endpoint("a", types=()), endpoint("a", types=EVENT_TYPES)]
FOREIGN = [endpoint("a", URL + "/x"), endpoint("b", URL + "/"), endpoint("c", "https://elsewhere.example/webhooks")]


@pytest.mark.parametrize(
    ("wanted", "registered", "create", "delete", "keep"),
    [
        (TWO, FOREIGN, True, [], None),
        (TWO, [RIGHT], False, [], RIGHT),
        (TWO, [WRONG], True, [WRONG], None),
        (TWO, [RIGHT, endpoint("b", types=tuple(TWO))], False, [endpoint("b", types=tuple(TWO))], RIGHT),
        *((types, [one], False, [], one) for types in (ALL, frozenset(EVENT_TYPES)) for one in UNFILTERED),
        *((TWO, [one], True, [one], None) for one in UNFILTERED),
    ],
)
def test_a_plan(
    wanted: frozenset[str], registered: list[Endpoint], create: bool, delete: list[Endpoint], keep: Endpoint | None
) -> None:
    steps = plan(URL, wanted, registered)
    assert (steps.create, list(steps.delete), steps.keep) == (create, delete, keep)
    assert steps.empty == (not create and not delete)


def test_a_path_secret_is_not_printed() -> None:
    assert shown("https://x.example/webhooks/abcdefghijklmnopqrstuvwxyz") == "https://x.example/webhooks/abcd…"
    assert shown(URL) == URL


def test_all_types_are_all_events() -> None:
    assert described(ALL) == described(frozenset(EVENT_TYPES)) == "all events"
    assert described(TWO) == "openid4vc.issuance.completed, openid4vc.verification.data"
