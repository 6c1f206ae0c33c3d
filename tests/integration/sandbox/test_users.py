"""Users of the sandbox: onboarded once, however often somebody asks."""

from urllib.parse import quote
from uuid import uuid4

import httpx

from support.platform.sandbox_api import USERS, data, invalid, missing, refused


def test_a_user_is_onboarded_and_then_resolved(api: httpx.Client) -> None:
    name, external = f"u-{uuid4()}", f"x-{uuid4()}"
    wanted = {"email": f"{name}@Example.org", "username": name.upper(), "externalIdentifier": external}
    first = data(api.post(USERS, json=wanted), 201)
    assert first["email"] == wanted["email"].lower()
    assert first["tempPassword"]
    for again in (wanted, {"email": wanted["email"]}, {"username": name}):
        assert data(api.post(USERS, json=again), 201) == {"email": first["email"], "tempPassword": ""}
    assert data(api.get(f"{USERS}/{name.upper()}/external-identifier")) == {"externalIdentifier": external}
    assert data(api.patch(f"{USERS}/{name.upper()}/idp-link", json={"enabled": False}))["username"] == name
    found = data(api.get(f"{USERS}/by-external-identifier/{external}"))
    assert (found["username"], found["enabled"]) == (name, True)  # It is the link that is off.


def test_an_email_alone_is_the_username_too(api: httpx.Client) -> None:
    email = f"{uuid4()}@example.org"
    assert data(api.post(USERS, json={"email": email}), 201)["tempPassword"]
    assert data(api.post(USERS, json={"username": email}), 201)["tempPassword"] == ""
    missing(api.get(f"{USERS}/{quote(email)}/external-identifier"))
    missing(api.get(f"{USERS}/unknown/external-identifier"))
    missing(api.patch(f"{USERS}/unknown/idp-link", json={"enabled": True}))


def test_an_account_learns_an_external_identifier_once(api: httpx.Client) -> None:
    name, external = f"u-{uuid4()}", f"x-{uuid4()}"
    api.post(USERS, json={"username": name})
    api.post(USERS, json={"username": name, "externalIdentifier": external, "firstName": "Eve"})
    assert data(api.get(f"{USERS}/by-external-identifier/{external}"))["firstName"] == ""
    api.post(USERS, json={"username": name, "externalIdentifier": f"{external}-2"})
    assert data(api.get(f"{USERS}/{name}/external-identifier")) == {"externalIdentifier": external}
    missing(api.get(f"{USERS}/by-external-identifier/{external}-2"))


def test_a_user_needs_a_name_and_names_of_two_accounts_are_a_conflict(api: httpx.Client) -> None:
    first, second = f"u-{uuid4()}", f"{uuid4()}@example.org"
    api.post(USERS, json={"username": first, "externalIdentifier": first})
    api.post(USERS, json={"email": second})
    invalid(api.post(USERS, json={"firstName": "Ada"}))
    for wanted in (
        {"username": first, "email": second},
        {"email": second, "externalIdentifier": first},
        {"username": f"{first}-new", "externalIdentifier": first},
    ):
        refused(api.post(USERS, json=wanted), 409, "CONFLICT", "Conflict")
