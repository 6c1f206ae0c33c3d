"""What the specification leaves optional, switched on: links, meta, the source of errors, no issuer."""

from typing import Any

import httpx
import pytest

from credhook.settings import PlatformSettings
from credhook.worker.api.client import AsyncApi, Sender
from support import plain
from support.platform.sandbox_api import CREDS, FORM, TOKEN, data
from support.process.serving import Platform

LIST = f"{CREDS}/credentials"
META = {"sandbox": True, "note": None}

pytestmark = pytest.mark.usefixtures("swept")


def pages(api: httpx.Client, begin: str, link: str) -> list[list[str]]:
    """Return the ids of each page from one on, along a link."""
    found, following = list[list[str]](), begin
    while following:
        answer = api.get(following).raise_for_status().json()
        found.append([each["id"] for each in answer["data"]])
        following = answer["links"].get(link, "")
    return found


def test_lists_have_every_link(sandbox: Platform, api: httpx.Client) -> None:
    ids = [sandbox.make() for _ in range(5)]
    before = [each["id"] for each in data(api.get(LIST))]
    assert before[-5:] == ids
    sandbox.faults(allLinks=True, pageSize=2)
    links = api.get(LIST).json()["links"]
    assert (links["self"], links["related"]) == (sandbox.url + LIST, f"{sandbox.url}{CREDS}")
    assert api.get(links["next"]).json()["links"]["self"] == links["next"]
    forwards = pages(api, LIST, "next")
    assert [id_ for ids_ in forwards for id_ in ids_] == before
    assert pages(api, links["last"], "prev") == forwards[::-1]
    assert pages(api, links["first"], "next") == forwards
    sandbox.faults(allLinks=False)
    assert api.get(f"{LIST}/{ids[0]}").json().keys() == {"data"}


def test_answers_and_errors_have_meta_and_source(sandbox: Platform, api: httpx.Client) -> None:
    id_ = sandbox.make()
    sandbox.faults(allLinks=True, meta=True, errorSource=True)
    answer = api.get(f"{LIST}/{id_}").json()
    assert answer["meta"] == META
    assert answer["links"] == {"self": f"{sandbox.url}{LIST}/{id_}", "related": sandbox.url + LIST}
    wrong = {"url": "https://inbox.example", "filterTypes": ["openid4vc.issuance.completed", "a/~b"]}
    sources = {
        "/filterTypes/1": api.post(f"{CREDS}/endpoints", json=wrong),
        "/": api.post(f"{CREDS}/endpoints", json={"url": "https://inbox.example", "": 1}),
        "/a~1~0b~01": api.post(f"{CREDS}/endpoints", json={"url": "https://inbox.example", "a/~b~1": 1}),
        "": api.get(f"{LIST}/unknown"),
    }
    for pointer, refusal in sources.items():
        (error,) = refusal.json()["errors"]
        assert (error["source"], error["meta"]) == ({"pointer": pointer}, META)
    (error,) = api.get(LIST, params={"page[after]": "x"}).json()["errors"]
    assert error["source"] == {"parameter": "page[after]"}
    sandbox.clear()
    (error,) = api.get(f"{LIST}/unknown").json()["errors"]
    assert not {"source", "meta"} & error.keys()


async def test_our_client_reads_what_is_optional(sandbox: Platform) -> None:
    ids = [sandbox.make() for _ in range(3)]
    offered = sandbox.make("openid4vc.issuance.offered")
    sandbox.faults(allLinks=True, meta=True, errorSource=True, noIss=True, pageSize=2)
    environment = {name: value for name, value in sandbox.environment.items() if "WEBHOOK" not in name}
    async with AsyncApi(Sender.from_settings(PlatformSettings.model_validate(environment))) as api:
        listed = await api.issuances.list()
        assert [each.id for each in listed][-4:] == [*ids, offered]
        assert listed.raw["meta"] == META
        issuance: Any = await api.issuances.get(offered)
        assert issuance.raw["links"]["self"].endswith(offered)
        credential, *_ = await api.wallet.accept(credential_offer=issuance.offer_uri)
        assert credential.iss is None
        assert "iss" not in credential.raw


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", ""])
def test_token_endpoint_wants_its_content_type(sandbox: Platform, content_type: str) -> None:
    body = httpx.Request("POST", sandbox.url, data=FORM).content
    form = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert plain.post(sandbox.url + TOKEN, content=body, headers=form).status_code == 200
    refusal = plain.post(sandbox.url + TOKEN, content=body, headers={"Content-Type": content_type})
    assert (refusal.status_code, refusal.json()["error"]) == (415, "invalid_request")


@pytest.mark.parametrize(
    ("url", "status"),
    [
        *(
            (url, 201)
            for url in ("https://a.example", "HTTPS://A.Example:8443/x?y", "https://[::1]/", "https://127.0.0.1")
        ),
        *((url, 400) for url in ("https://a b", "https://:99999/", "https://a.example:99999/", "https://a.example:0/")),
        *((url, 400) for url in ("https://", "https:///x", "http://a.example", "https://a..b", "https://me@a.example")),
        *((url, 400) for url in ("https://a.example/x y", "https://[::1", "https://a.example/é", "a.example", "")),
    ],
)
def test_endpoint_needs_a_url_that_can_be_called(api: httpx.Client, url: str, status: int) -> None:
    answer = api.post(f"{CREDS}/endpoints", json={"url": url})
    assert answer.status_code == status
    if status == 201:
        assert data(answer, 201)["url"] == url
        api.delete(f"{CREDS}/endpoints/{data(answer, 201)['id']}").raise_for_status()
