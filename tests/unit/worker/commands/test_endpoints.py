import asyncio
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import httpx
import pytest

from credhook.console.endpoints import digest
from credhook.events import EVENT_TYPES
from credhook.settings import EndpointSettings
from credhook.worker.api.errors import ApiError, InvalidRequest, InvalidResponse
from credhook.worker.api.models import Endpoint, EndpointRequest
from credhook.worker.commands.endpoints import ALL, Plan, apply, lines, plan, shown
from support.platform.token_endpoint import async_api

URL = "https://inbox.example/webhooks"
SECRET = "/abcdefghijklmnopqrstuvwxyz"
TWO = frozenset({"openid4vc.issuance.completed", "openid4vc.verification.data"})


def endpoint(name: str, url: str = URL, types: tuple[str, ...] | None = None) -> Endpoint:
    return Endpoint(id=name, url=url, filter_types=types)


RIGHT = endpoint("a", types=tuple(sorted(TWO, reverse=True)))
NAMED = endpoint("credhook-3-q", types=tuple(TWO))
WRONG = endpoint("a", types=("openid4vc.issuance.failed",))
TEN = frozenset(EVENT_TYPES)
#: The platform may name all types, and newer ones, where none were asked for; the id tells.
UNFILTERED = [endpoint("a"), endpoint("a", types=()), endpoint("credhook-all-7-q", types=(*EVENT_TYPES, "a.new"))]
EXPLICIT = [endpoint("a", types=EVENT_TYPES), endpoint("credhook-7-q", types=EVENT_TYPES)]
FOREIGN = [
    *(endpoint("a", URL + "/x"), endpoint("b", URL + "?x"), endpoint("c", "https://elsewhere.example/webhooks")),
    *(endpoint(f"credhook-1-{queue}", URL + "/x") for queue in ("q2", "all-q", "1-q", "q-q")),
    *(endpoint(name, URL + "/x") for name in ("credhook-q", "credhook-0-q", "xcredhook-1-q", "credhook-1-q-2")),
    endpoint("credhook-1-r", URL + SECRET),  # Another queue's, at the same place.
    *(endpoint("d", url) for url in ("https://[x", "", "not a url", f"http://inbox.example:444{SECRET}")),
]
#: What was ours before: its path secret or its path was another one.
EARLIER = [
    endpoint(f"credhook-{name}-q", url)
    for name in ("1", "all-1")
    for url in (URL + SECRET, "https://INBOX.example:443/")
]
#: What may have been: at another host, or registered by hand with an earlier path secret.
DOUBTFUL = [endpoint("credhook-1-q", "https://old.example/\x1b"), endpoint("a", URL + SECRET)]


@pytest.mark.parametrize(
    ("wanted", "registered", "create", "delete", "keep"),
    [
        (TWO, FOREIGN, True, [], None),
        (TWO, [RIGHT], False, [], RIGHT),
        (TWO, [WRONG], True, [WRONG], None),
        (TWO, [RIGHT, endpoint("b", types=tuple(TWO))], False, [endpoint("b", types=tuple(TWO))], RIGHT),
        *((types, [one], False, [], one) for types in (ALL, TEN) for one in UNFILTERED),
        *((TWO, [one], True, [one], None) for one in (*UNFILTERED, *EXPLICIT, endpoint("credhook-1-before", URL))),
        *((TEN, [one], False, [], one) for one in EXPLICIT),
        (ALL, [EXPLICIT[0]], False, [], EXPLICIT[0]),  # The platform may have chosen the id, and may name all types.
        (ALL, [EXPLICIT[1]], True, [EXPLICIT[1]], None),
        *((ALL, [one], True, [one], None) for one in (endpoint("credhook-all-1-q", types=tuple(TWO)),)),
        *((TWO, [one, RIGHT], False, [one], RIGHT) for one in EARLIER),
        *((TWO, [one], False, [], one) for one in (endpoint("a", "https://INBOX.example:443/webhooks", tuple(TWO)),)),
        (TWO, DOUBTFUL, True, [], None),
        (TWO, [RIGHT, NAMED], False, [RIGHT], NAMED),
    ],
)
def test_a_plan(
    wanted: frozenset[str], registered: list[Endpoint], create: bool, delete: list[Endpoint], keep: Endpoint | None
) -> None:
    steps = plan(URL, wanted, registered, "q")
    assert (steps.keep is None, list(steps.delete), steps.keep) == (create, delete, keep)
    assert steps.empty == (not create and not delete)


def test_doubtful_endpoints_are_replaced_only_if_told() -> None:
    left = plan(URL, TWO, [*DOUBTFUL, *FOREIGN, RIGHT], "q")
    assert (list(left.doubtful), left.empty) == (DOUBTFUL, True)
    assert sum("stays" in line and line.isprintable() for line in lines(left)) == 2
    moved = plan(URL, TWO, [*DOUBTFUL, *FOREIGN, RIGHT], "q", moved=True)
    assert (list(moved.delete), moved.doubtful) == (DOUBTFUL, ())
    assert "abcdefghijklmnopqrstuvwxyz" not in "\n".join([*lines(left), *lines(moved)])


def test_a_plan_is_told_step_by_step_with_what_each_endpoint_receives() -> None:
    old = endpoint("credhook-1-q", URL + SECRET, (*EVENT_TYPES, "a.new"))
    few, new = endpoint("b\x1b", types=(EVENT_TYPES[0], "a.new")), endpoint("c", types=("a.new",))
    told = [
        f"{URL}: openid4vc.issuance.completed, openid4vc.verification.data",
        "  create  a new endpoint, credhook-2-q",
        f"  delete  credhook-1-q at {URL}/abcd… (all {len(EVENT_TYPES)} event types, a.new)",
        f"  delete  b\\x1b at {URL} ({EVENT_TYPES[0]}, a.new)",
        f"  delete  c at {URL} (a.new)",
        "  note    while both exist, the platform may deliver one event twice, under two webhook-ids",
    ]
    assert list(lines(plan(URL, TWO, [old, few, new], "q"))) == told
    kept = [told[0], "  keep    a", *told[2:5]]
    assert list(lines(plan(URL, TWO, [old, few, new, RIGHT], "q"))) == kept
    slashed, rooted = endpoint("a", URL + "/", tuple(TWO)), endpoint("a", "https://a.b/", tuple(TWO))
    note = f"  note    the platform writes it as {URL}/: deliveries may come to that path"
    assert list(lines(plan(URL, TWO, [slashed], "q")))[1:3] == [note, "  keep    a"]
    assert "writes it as" not in "".join(lines(plan("https://a.b", TWO, [rooted], "q")))
    doubtful = "\n".join(lines(plan(URL, TWO, [DOUBTFUL[1]], "q")))
    assert "If it is this deployment's,\n          replace it with --moved. If not, give each deployment a" in doubtful
    assert all("has no path" in "\n".join(lines(plan(f"https://a.b{end}", TWO, [], "q"))) for end in ("", "/"))
    assert len(list(lines(plan(URL, TWO, [], "q")))) == 2  # Nothing is deleted, so nothing overlaps.
    for before, length in ("https://[x", 22), (URL, 22), (URL, 128):  # The shortest and longest that a receiver takes.
        assert shown(f"{before}/abcd{'e' * (length - 4)}") == f"{before}/abcd…"
    assert shown(URL) == URL


def test_plans_that_do_something_else_have_another_digest() -> None:
    plans = [plan(url, wanted, [WRONG], "q") for url in (URL, URL + "/x") for wanted in (TWO, TEN)]
    assert len({digest(one) for one in (*plans, plan(URL, TWO, [RIGHT], "q"), plan(URL, TWO, [], "q"))}) == 6


def test_a_new_endpoint_has_an_id_of_its_own() -> None:
    others = [endpoint(name, URL + "/x") for name in ("credhook-14-q", "credhook-99-r", "x")]
    assert plan(URL, ALL, others, "q").new_id == "credhook-all-15-q"
    assert plan(URL, TWO, [], "q").new_id == "credhook-1-q"
    assert plan(URL, TWO, [], "q" * 64).new_id == EndpointRequest(url=URL, id=f"credhook-1-{'q' * 64}").id


WORKS = (0, True)


class Registry:
    """A platform that registers endpoints, and answers the next requests otherwise: each with its work done, or not."""

    def __init__(self, *registered: Endpoint, answers: list[tuple[int, bool]]) -> None:
        self.registered = {one.id: one for one in registered}
        self.answers, self.asked = answers, list[str]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        id_ = request.url.path.rpartition("/")[2]
        self.asked.append(f"{request.method} {id_}")
        status, works = self.answers.pop(0) if self.answers else (0, True)
        if request.method == "GET":
            return httpx.Response(200, json=[one.model_dump(mode="json") for one in self.registered.values()])
        if request.method == "DELETE":
            found = self.registered.pop(id_, None) if works else None
            return httpx.Response(status or (204 if found else 404))
        body = json.loads(request.content)
        taken = body["id"] in self.registered
        if works and not taken:
            self.registered[body["id"]] = endpoint(body["id"], body["url"], body.get("filterTypes"))
        return httpx.Response(status or (409 if taken else 201), json=body)


@pytest.mark.parametrize(
    ("answers", "asked", "left", "message"),
    [
        ([], "POST DELETE DELETE GET", {"credhook-2-q"}, ""),
        ([(500, True)], "POST POST GET DELETE DELETE GET", {"credhook-2-q"}, ""),  # It was created all the same.
        ([(500, False)], "POST POST DELETE DELETE GET", {"credhook-2-q"}, ""),
        ([WORKS, WORKS, (500, True)], "POST DELETE DELETE DELETE GET", {"credhook-2-q"}, ""),  # The last: 404.
        ([(409, False)], "POST GET", {"credhook-1-q"}, "endpoints.create: the platform answered 409"),
        ([(403, False)], "POST", {"credhook-1-q"}, "endpoints.create: the platform answered 403"),
        ([WORKS, WORKS, (403, False)], "POST DELETE DELETE", {"credhook-1-q", "credhook-2-q"}, "until credhook-1-q"),
    ],
)
async def test_no_event_is_lost_when_a_step_of_apply_fails(
    answers: list[tuple[int, bool]], asked: str, left: set[str], message: str
) -> None:
    gone, old = (endpoint(f"credhook-{name}-q", URL + SECRET) for name in ("all-1", "1"))
    platform = Registry(old, answers=answers)
    async with async_api(platform, retry_seconds=10.0) as api:
        with pytest.raises(ApiError, match=message) if message else nullcontext():
            await apply(api, plan(URL, TWO, [gone, old], "q"))
    assert " ".join(one.partition(" ")[0] for one in platform.asked) == asked
    assert set(platform.registered) == left


async def test_endpoint_with_fewer_types_replaces_nothing() -> None:
    old, taken = endpoint("credhook-1-q", URL + SECRET), endpoint("credhook-2-q", types=(EVENT_TYPES[0],))
    platform = Registry(old, taken, answers=[])
    async with async_api(platform) as api:
        with pytest.raises(InvalidRequest, match="409"):
            await apply(api, plan(URL, TWO, [old], "q"))
        assert set(platform.registered) == {"credhook-1-q", "credhook-2-q"}
    platform = Registry(answers=[])
    async with async_api(platform) as api:
        await apply(api, plan(URL, ALL, [], "q"))  # This request names no types.
    assert platform.registered["credhook-all-1-q"].filter_types is None


async def test_undeletable_endpoint_stops_apply_before_it_creates() -> None:
    platform = Registry(answers=[])
    async with async_api(platform) as api:
        with pytest.raises(InvalidRequest, match=r"^endpoints\.delete: id should"):
            await apply(api, plan(URL, TWO, [endpoint("..")], "q"))
    assert platform.asked == []


TYPES = ("openid4vc.issuance.completed", "openid4vc.verification.data")


def reversed_ids(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"id": body["id"][::-1]}


def with_url(write: Callable[[str], str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: body | {"url": write(body["url"])}


def with_types(write: Callable[[str], str], *more: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: body | {"filterTypes": [*map(write, reversed(body.get("filterTypes") or EVENT_TYPES)), *more]}


#: How a platform may write what it was sent.
SPELLINGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "as sent": lambda body: body,
    "an id of its own": reversed_ids,
    "its own id, all types named": lambda body: reversed_ids(with_types(str)(body)),
    "a number as the id": lambda body: body | {"id": 7, "createdAt": "just now", "new": {}},
    "another order": with_types(str),
    "aliases of types": with_types(lambda name: name.replace(".verification.", ".presentation.")),
    "upper case of types": with_types(str.upper),
    "a newer type": with_types(str, "openid4vc.issuance.revoked"),
    "a slash more": with_url(lambda url: url + "/"),
    "a slash less": with_url(lambda url: url.rstrip("/")),
    "upper case of the host": with_url(lambda url: url.replace("inbox.example", "INBOX.Example.")),
    "a default port": with_url(lambda url: url.replace(".example", ".example:443")),
    "needless encoding": with_url(lambda url: url.replace("~", "%7e")),
    "a name of another script": with_url(lambda url: url.replace("xn--bro-hoa", "büro")),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("url", [URL, "https://büro.example/webhooks/~x/", f"https://inbox.example{SECRET}"])
@pytest.mark.parametrize("types", [TYPES, ()], ids=["two types", "all events"])
def test_second_apply_does_nothing_whatever_spelling_the_platform_uses(
    spelling: str, url: str, types: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: dict[str, Any] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            body = SPELLINGS[spelling](json.loads(request.content))
            registered[body["id"]] = body
            return httpx.Response(201, json={"data": body})
        assert request.method == "GET", "an endpoint was deleted"
        return httpx.Response(200, json={"data": list(registered.values())})

    public_url = EndpointSettings.model_validate({"CREDHOOK_PUBLIC_URL": url}).public_url

    async def applied() -> Plan:
        async with async_api(answer) as api:
            steps = plan(public_url, frozenset(types), await api.endpoints.list(), "q")
            await apply(api, steps)
            return steps

    assert [asyncio.run(applied()).empty for _ in range(3)] == [False, True, True]
    assert len(registered) == 1
    assert SECRET not in "\n".join(lines(asyncio.run(applied())))


async def test_apply_waits_for_a_platform_whose_list_lags() -> None:
    lists = [[], [endpoint("credhook-1-q", types=TYPES)]]

    def lags(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(201, json=json.loads(request.content))
        return httpx.Response(200, json=[one.model_dump(mode="json") for one in lists.pop(0)])

    async with async_api(lags) as api:
        await apply(api, plan(URL, TWO, [], "q"))
    assert lists == []


async def test_apply_fails_with_the_difference_if_the_platform_registers_something_else() -> None:
    platform = Registry(answers=[])

    def adds_types(request: httpx.Request) -> httpx.Response:
        answer = platform(request)
        for name, registered in platform.registered.items():
            platform.registered[name] = registered.model_copy(update={"filter_types": EVENT_TYPES[:3]})
        return answer

    async with async_api(adds_types) as api:
        with pytest.raises(
            InvalidResponse, match=rf"still differs.* credhook-1-q at {URL} \(openid4vc.issuance.completed, "
        ):
            await apply(api, plan(URL, TWO, [], "q"))


async def test_apply_fails_if_the_endpoint_of_a_deployment_that_has_moved_stays() -> None:
    old = endpoint("credhook-1-q", "https://old.example")
    async with async_api(Registry(old, answers=[WORKS, (204, False)])) as api:
        with pytest.raises(InvalidResponse, match=r"still differs.*; delete credhook-1-q at https://old\.example"):
            await apply(api, plan(URL, TWO, [old], "q", moved=True))
