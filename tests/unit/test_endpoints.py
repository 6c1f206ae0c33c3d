import pytest

from credhook.events import EVENT_TYPES
from credhook.worker.api.models import Endpoint
from credhook.worker.commands.endpoints import ALL, plan, shown

URL = "https://inbox.example/webhooks"
TWO = frozenset({"openid4vc.issuance.completed", "openid4vc.verification.data"})


def endpoint(name: str, url: str = URL, types: tuple[str, ...] | None = None) -> Endpoint:
    return Endpoint(id=name, url=url, filter_types=types)


def test_nothing_registered_means_one_to_create() -> None:
    steps = plan(URL, TWO, [endpoint("other", "https://elsewhere.example/")])
    assert steps.create
    assert steps.delete == ()
    assert not steps.overlaps


def test_what_is_right_already_is_kept_whatever_the_order_of_its_types() -> None:
    right = endpoint("a", types=tuple(sorted(TWO, reverse=True)))
    steps = plan(URL, TWO, [right])
    assert steps.empty
    assert steps.keep is right


@pytest.mark.parametrize("types", [None, ()])
def test_no_types_means_all(types: tuple[str, ...] | None) -> None:
    assert plan(URL, ALL, [endpoint("a", types=types)]).empty
    assert plan(URL, ALL, [endpoint("a", types=EVENT_TYPES)]).empty
    assert plan(URL, frozenset(EVENT_TYPES), [endpoint("a", types=types)]).empty
    assert plan(URL, TWO, [endpoint("a", types=types)]).overlaps


def test_what_is_wrong_is_replaced_and_the_overlap_announced() -> None:
    wrong = endpoint("a", types=("openid4vc.issuance.failed",))
    steps = plan(URL, TWO, [wrong])
    assert steps.create
    assert steps.delete == (wrong,)
    assert steps.overlaps


def test_of_two_that_are_right_one_is_deleted() -> None:
    first, second = endpoint("a", types=tuple(TWO)), endpoint("b", types=tuple(TWO))
    steps = plan(URL, TWO, [first, second])
    assert not steps.create
    assert steps.keep is first
    assert steps.delete == (second,)
    assert not steps.overlaps


def test_nobody_elses_endpoint_is_ever_touched() -> None:
    others = [endpoint("a", URL + "/x"), endpoint("b", URL + "/"), endpoint("c", "https://elsewhere.example/webhooks")]
    assert plan(URL, TWO, others).delete == ()


def test_a_path_secret_is_not_printed() -> None:
    assert shown("https://x.example/webhooks/abcdefghijklmnopqrstuvwxyz") == "https://x.example/webhooks/abcd…"
    assert shown(URL) == URL
