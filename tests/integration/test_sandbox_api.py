"""The sandbox's API on a real socket: every operation of the specification, its rules, and hostile input."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from serving import Platform, platform

CREDS = "/me-creds/api"
USERS = "/consumer-onboarding/api/users"
FORM = {"grant_type": "client_credentials", "client_id": "sandbox", "client_secret": "sandbox"}
TOKEN = "/realms/sandbox/protocol/openid-connect/token"

PRESET: dict[str, Any] = {
    "credentialFormat": "sd-jwt",
    "templateName": "Badge",
    "templateDescription": "A badge.",
    "templateAttributes": {
        "name": {"type": "string", "required": True},
        "address": {"type": "object", "properties": {"street": {"type": "string"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
FUTURE = {"days": 1, "months": 0, "years": 0}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("sandbox")) as running:
        yield running


@pytest.fixture(scope="module")
def api(sandbox: Platform) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandbox.url) as client:
        granted = client.post(TOKEN, data=FORM).json()
        client.headers["authorization"] = f"Bearer {granted['access_token']}"
        yield client


def data(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()["data"]


def refused(answer: httpx.Response, status: int, code: str, title: str) -> str:
    """The detail of an error that has all that the specification asks of one."""
    assert answer.status_code == status, answer.text
    first = answer.json()["errors"][0]
    assert (first["status"], first["code"], first["title"]) == (status, code, title)
    assert UUID(first["id"])
    detail = first["detail"]
    assert isinstance(detail, str)
    return detail


def invalid(answer: httpx.Response) -> str:
    return refused(answer, 400, "VALIDATION_ERROR", "Validation Failed")


def missing(answer: httpx.Response) -> str:
    return refused(answer, 404, "NOT_FOUND", "Not Found")


def code() -> str:
    return f"c-{uuid4()}"


def happen(api: httpx.Client, event_type: str, **more: Any) -> str:
    found = data(api.post("/sandbox/events", json={"eventType": event_type, **more}), 201)
    return str(found[0]["resourceId"])


# Tokens


def test_a_token_has_exactly_the_fields_of_the_specification(api: httpx.Client) -> None:
    granted = api.post(TOKEN, data=FORM).json()
    assert granted.pop("access_token")
    assert granted == {
        "expires_in": 300,
        "refresh_expires_in": 0,
        "token_type": "Bearer",
        "not-before-policy": 0,
        "scope": "",
    }


@pytest.mark.parametrize(
    ("form", "status", "error"),
    [
        (FORM | {"client_secret": "wrong"}, 401, "invalid_client"),
        (FORM | {"client_id": "wrong"}, 401, "invalid_client"),
        ({"grant_type": "client_credentials"}, 401, "invalid_client"),
        (FORM | {"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"client_id": "sandbox", "client_secret": "sandbox"}, 400, "invalid_request"),
    ],
)
def test_the_token_endpoint_refuses_as_identity_providers_do(
    api: httpx.Client, form: dict[str, str], status: int, error: str
) -> None:
    answer = api.post(TOKEN, data=form)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_another_realm_does_not_exist(api: httpx.Client) -> None:
    assert api.post(TOKEN.replace("realms/sandbox", "realms/other"), data=FORM).status_code == 404


def test_every_operation_of_the_platform_needs_a_token(sandbox: Platform) -> None:
    document = httpx.get(f"{sandbox.url}/openapi.json").json()
    asked = 0
    for path, methods in document["paths"].items():
        for method in methods:
            if path.startswith("/realms/"):
                continue
            answer = httpx.request(method, sandbox.url + path.replace("{", "").replace("}", ""))
            refused(answer, 401, "UNAUTHORIZED", "Unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            asked += 1
    assert asked == 17


# Presets and templates


def test_an_sd_jwt_preset_is_created_and_read_as_a_template(api: httpx.Client) -> None:
    wanted = PRESET | {"code": code(), "validUntil": {"start": "validFrom", "future": FUTURE}}
    preset = data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    assert preset["id"] == f"{preset['author']}:{wanted['code']}"
    assert preset["templateType"].startswith("https://")
    assert preset["templateType"].endswith(f"{preset['author']}/{wanted['code']}")
    assert preset["issuerConfig"] == {"signer": "did:web"}
    assert {name: preset[name] for name in wanted} == wanted
    assert datetime.fromisoformat(preset["createdAt"]) == datetime.fromisoformat(preset["updatedAt"])
    template = data(api.get(f"{CREDS}/templates/credentials/{preset['id']}"))
    assert template == {
        "id": preset["id"],
        "name": "Badge",
        "description": "A badge.",
        "type": preset["templateType"],
        "format": "sd-jwt-vc",
        "attributes": PRESET["templateAttributes"],
        "createdAt": preset["createdAt"],
        "updatedAt": preset["updatedAt"],
        "archivedAt": None,
    }


def test_an_mdoc_preset_is_created_and_read_as_a_template(api: httpx.Client) -> None:
    wanted = PRESET | {
        "credentialFormat": "mdoc",
        "code": code(),
        "type": "org.example.permit",
        "templateAttributes": {"org.example": {"properties": {"portrait": {"type": "binary"}}}},
        "validUntil": {"future": FUTURE},
    }
    preset = data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    assert (preset["templateType"], preset["issuerConfig"]) == ("org.example.permit", None)
    assert "type" not in preset
    template = data(api.get(f"{CREDS}/templates/credentials/{preset['id']}"))
    assert (template["format"], template["type"]) == ("mdoc", "org.example.permit")
    assert template["attributes"] == wanted["templateAttributes"]


def test_a_code_is_taken_once(api: httpx.Client) -> None:
    wanted = PRESET | {"code": code()}
    data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    refused(api.post(f"{CREDS}/presets/credentials", json=wanted), 409, "CONFLICT", "Conflict")


def test_a_wrong_preset_is_refused_with_the_place_of_every_fault(api: httpx.Client) -> None:
    answer = api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": "A", "templateName": 1})
    invalid(answer)
    assert {each["source"]["pointer"] for each in answer.json()["errors"]} == {"/code", "/templateName"}


def test_an_unknown_template_is_missing(api: httpx.Client) -> None:
    missing(api.get(f"{CREDS}/templates/credentials/sandbox:unknown"))


def test_an_archived_template_can_be_read_and_not_issued_by(api: httpx.Client) -> None:
    id_ = data(api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": code()}))["id"]
    archived = data(api.post(f"/sandbox/templates/{id_}/archive"))["archivedAt"]
    assert datetime.fromisoformat(archived)
    assert data(api.get(f"{CREDS}/templates/credentials/{id_}"))["archivedAt"] == archived
    assert data(api.post(f"/sandbox/templates/{id_}/archive"))["archivedAt"] == archived
    wanted = {"eventType": "openid4vc.issuance.offered", "templateId": id_, "attributes": {"name": "Ada"}}
    missing(api.post("/sandbox/events", json=wanted))


def test_attributes_that_do_not_fit_name_the_template_and_not_the_attribute(api: httpx.Client) -> None:
    id_ = data(api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": code()}))["id"]
    wanted = {"eventType": "openid4vc.issuance.offered", "templateId": id_, "attributes": {"address": "x"}}
    answer = api.post("/sandbox/events", json=wanted)
    assert id_ in invalid(answer)
    assert "address" not in answer.text
    assert "name" not in answer.text


# Certificates and trusted entities


def signing_request(api: httpx.Client, key_type: str = "P-256") -> dict[str, Any]:
    return next(each for each in data(api.get("/sandbox/csrs")) if each["keyType"] == key_type)


@pytest.mark.parametrize("key_type", ["P-256", "Ed25519"])
def test_a_signed_request_is_imported(api: httpx.Client, key_type: str) -> None:
    request = signing_request(api, key_type)
    chain = data(api.post(f"/sandbox/csrs/{request['id']}/sign"))
    record = data(api.post(f"{CREDS}/certificates/csrs/{request['id']}/import", json=chain))
    leaf = x509.load_pem_x509_certificate(chain["certificate"].encode())
    assert all(isinstance(value, str) for value in record.values())
    assert record["certificateSigningRequest"] == request["certificateSigningRequest"]
    assert (
        record["subjectKeyIdentifier"]
        == leaf.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()
    )
    assert datetime.fromisoformat(record["expiresAt"]) == leaf.not_valid_after_utc
    again = data(api.post(f"{CREDS}/certificates/csrs/{request['id']}/import", json=chain))
    assert again["createdAt"] == record["createdAt"]
    assert again["updatedAt"] > record["updatedAt"]


def test_the_chain_leads_from_the_leaf_to_the_root_and_roots_are_ignored(api: httpx.Client) -> None:
    id_ = signing_request(api)["id"]
    chain = data(api.post(f"/sandbox/csrs/{id_}/sign"))
    intermediate, root = chain["parentCertificates"]
    other = data(api.post(f"/sandbox/csrs/{signing_request(api, 'Ed25519')['id']}/sign"))["certificate"]

    def imported(*parents: str) -> httpx.Response:
        body = {"certificate": chain["certificate"], "parentCertificates": list(parents)}
        return api.post(f"{CREDS}/certificates/csrs/{id_}/import", json=body)

    for fine in ([], [intermediate], [intermediate, root], [root, intermediate], [root]):
        assert imported(*fine).status_code == 200, fine
    for wrong in ([other], [intermediate, other], [intermediate, intermediate], [other, intermediate]):
        assert "root" in invalid(imported(*wrong)), wrong


def test_what_is_no_certificate_for_the_request_is_refused(api: httpx.Client) -> None:
    request = signing_request(api)
    other = data(api.post(f"/sandbox/csrs/{signing_request(api, 'Ed25519')['id']}/sign"))
    twice = data(api.post(f"/sandbox/csrs/{request['id']}/sign"))["certificate"] * 2
    path = f"{CREDS}/certificates/csrs/{request['id']}/import"
    assert "another key" in invalid(api.post(path, json=other))
    for text in ("", "nonsense", "é", request["certificateSigningRequest"], twice):
        assert "PEM" in invalid(api.post(path, json={"certificate": text}))
    missing(api.post(f"{CREDS}/certificates/csrs/unknown/import", json=other))


def test_an_expired_certificate_is_refused(api: httpx.Client) -> None:
    request = signing_request(api)
    csr = x509.load_pem_x509_csr(request["certificateSigningRequest"].encode())
    now = datetime.now(UTC)
    expired = (
        x509.CertificateBuilder()
        .subject_name(csr.subject)
        .issuer_name(csr.subject)
        .public_key(csr.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now - timedelta(days=1))
        .sign(ec.generate_private_key(ec.SECP256R1()), SHA256())
    )
    body = {"certificate": expired.public_bytes(Encoding.PEM).decode()}
    assert "expired" in invalid(api.post(f"{CREDS}/certificates/csrs/{request['id']}/import", json=body))


def test_a_trusted_entity_is_registered(api: httpx.Client) -> None:
    dids = [{"did": "did:web:issuer.example", "name": "Issuer"}]
    entity = data(api.post(f"{CREDS}/trusted-entities", json={"name": "Issuer", "dids": dids}), 201)
    assert (entity["name"], entity["dids"], entity["certificates"]) == ("Issuer", dids, [])
    assert {"id", "createdAt", "updatedAt"} <= entity.keys()
    kept: list[Any] = ["-----BEGIN CERTIFICATE-----", {"pem": "x", "name": None}]
    entity = data(api.post(f"{CREDS}/trusted-entities", json={"name": "x", "certificates": kept}), 201)
    assert entity["certificates"] == kept
    invalid(api.post(f"{CREDS}/trusted-entities", json={"dids": dids}))


# Webhook endpoints


def test_an_endpoint_is_registered_listed_and_removed(api: httpx.Client) -> None:
    id_ = f"mine-{uuid4()}"
    wanted = {"url": "https://127.0.0.1:9/x", "id": id_, "filterTypes": ["openid4vc.issuance.failed"]}
    endpoint = data(api.post(f"{CREDS}/endpoints", json=wanted), 201)
    assert {name: endpoint[name] for name in wanted} == wanted
    assert endpoint.keys() == {"id", "url", "filterTypes", "createdAt", "updatedAt"}
    listed = api.get(f"{CREDS}/endpoints").json()
    assert endpoint in listed
    refused(api.post(f"{CREDS}/endpoints", json=wanted), 409, "CONFLICT", "Conflict")
    gone = api.delete(f"{CREDS}/endpoints/{id_}")
    assert (gone.status_code, gone.content) == (204, b"")
    missing(api.delete(f"{CREDS}/endpoints/{id_}"))


def test_without_filter_types_all_ten_are_received(api: httpx.Client) -> None:
    endpoint = data(api.post(f"{CREDS}/endpoints", json={"url": "https://127.0.0.1:9/x"}), 201)
    assert len(set(endpoint["filterTypes"])) == 10
    api.delete(f"{CREDS}/endpoints/{endpoint['id']}")


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "http://127.0.0.1/"},
        {"filterTypes": ["openid4vc.presentation.verified"]},
        {"filterTypes": []},
        {"filterTypes": None},
        {"id": ".."},
    ],
)
def test_a_wrong_registration_is_refused(api: httpx.Client, changes: dict[str, Any]) -> None:
    invalid(api.post(f"{CREDS}/endpoints", json={"url": "https://127.0.0.1:9/x"} | changes))


# Users


def test_a_user_is_onboarded_and_then_resolved(api: httpx.Client) -> None:
    name, external = f"u-{uuid4()}", f"x-{uuid4()}"
    wanted = {
        "email": f"{name}@Example.org",
        "username": name.upper(),
        "firstName": "Ada",
        "lastName": "Example",
        "externalIdentifier": external,
    }
    first = data(api.post(USERS, json=wanted), 201)
    assert first["email"] == wanted["email"].lower()
    assert first["tempPassword"]
    for again in (wanted, {"email": wanted["email"]}, {"username": name}):
        assert data(api.post(USERS, json=again), 201) == {"email": first["email"], "tempPassword": ""}
    user = data(api.get(f"{USERS}/by-external-identifier/{external}"))
    assert UUID(user.pop("id"))
    assert user == {
        "username": name,
        "email": first["email"],
        "firstName": "Ada",
        "lastName": "Example",
        "enabled": True,
    }
    assert name in [each["username"] for each in data(api.get(USERS))]
    assert data(api.get(f"{USERS}/{name}/external-identifier")) == {"externalIdentifier": external}


def test_an_email_alone_is_the_username_too(api: httpx.Client) -> None:
    email = f"{uuid4()}@example.org"
    assert data(api.post(USERS, json={"email": email}), 201)["tempPassword"]
    assert data(api.post(USERS, json={"username": email}), 201)["tempPassword"] == ""
    missing(api.get(f"{USERS}/{quote(email)}/external-identifier"))


def test_an_account_learns_an_external_identifier_once(api: httpx.Client) -> None:
    name, external = f"u-{uuid4()}", f"x-{uuid4()}"
    api.post(USERS, json={"username": name})
    api.post(USERS, json={"username": name, "externalIdentifier": external})
    api.post(USERS, json={"username": name, "externalIdentifier": f"{external}-2"})
    assert data(api.get(f"{USERS}/{name}/external-identifier")) == {"externalIdentifier": external}
    missing(api.get(f"{USERS}/by-external-identifier/{external}-2"))


def test_names_of_two_accounts_are_a_conflict(api: httpx.Client) -> None:
    first, second = f"u-{uuid4()}", f"{uuid4()}@example.org"
    api.post(USERS, json={"username": first, "externalIdentifier": first})
    api.post(USERS, json={"email": second})
    for wanted in (
        {"username": first, "email": second},
        {"email": second, "externalIdentifier": first},
        {"username": f"{first}-new", "externalIdentifier": first},
    ):
        refused(api.post(USERS, json=wanted), 409, "CONFLICT", "Conflict")


def test_an_email_or_a_username_is_needed(api: httpx.Client) -> None:
    invalid(api.post(USERS, json={"firstName": "Ada"}))


def test_the_identity_link_is_idempotent(api: httpx.Client) -> None:
    name = f"u-{uuid4()}"
    api.post(USERS, json={"username": name})
    for enabled in (True, True, False, False):
        link = data(api.patch(f"{USERS}/{name}/idp-link", json={"enabled": enabled}))
        assert link == {"username": name, "idpAlias": "sandbox-idp", "linked": enabled}
    missing(api.patch(f"{USERS}/unknown/idp-link", json={"enabled": True}))
    invalid(api.patch(f"{USERS}/{name}/idp-link", json={"enabled": "yes"}))


# The wallet, issuances and presentations


def test_an_offer_becomes_credentials_and_completes_its_issuance(api: httpx.Client) -> None:
    id_ = happen(api, "openid4vc.issuance.offered", attributes={"givenName": "Grace"})
    issuance = data(api.get(f"{CREDS}/credentials/{id_}"))
    assert issuance["status"] == "offered"
    answer = api.post("/me-wallet/api/credentials", json={"credentialOffer": issuance["offerUri"]})
    assert answer.status_code == 201
    credentials = answer.json()
    assert isinstance(credentials, list)
    assert len(credentials) == len(issuance["credentials"])
    for credential in credentials:
        assert UUID(credential.pop("id"))
        assert datetime.fromisoformat(credential.pop("iat"))
        assert credential == {
            "claims": {"givenName": "Grace"},
            "status": "accepted",
            "format": "vc+sd-jwt",
            "vct": "https://sandbox.example/types/sandbox/membership",
            "iss": "did:web:sandbox.example",
        }
    assert data(api.get(f"{CREDS}/credentials/{id_}"))["status"] == "completed"
    invalid(api.post("/me-wallet/api/credentials", json={"credentialOffer": issuance["offerUri"]}))


def test_an_mdoc_in_the_wallet_names_its_issuer_by_x509_name(api: httpx.Client) -> None:
    id_ = happen(api, "openid4vc.issuance.offered", templateId="sandbox:permit")
    offer = data(api.get(f"{CREDS}/credentials/{id_}"))["offerUri"]
    credential = api.post("/me-wallet/api/credentials", json={"credentialOffer": offer}).json()[0]
    assert (credential["iss"], credential["vct"]) == ("CN=Sandbox Issuer", "example.sandbox.permit.1")


def test_offers_of_somebody_else_are_missing_and_other_text_is_no_offer(api: httpx.Client) -> None:
    for offer in (
        "openid-credential-offer://?credential_offer=%7B%7D",
        "openid-credential-offer://?credential_offer_uri=https%3A%2F%2Felsewhere.example%2Foffers%2Fx",
        "openid-credential-offer://?credential_offer_uri=https%3A%2F%2F[broken",
        "openid-credential-offer://",
    ):
        missing(api.post("/me-wallet/api/credentials", json={"credentialOffer": offer}))
    invalid(api.post("/me-wallet/api/credentials", json={"credentialOffer": "nonsense"}))
    invalid(api.post("/me-wallet/api/credentials", json={}))


@pytest.mark.parametrize(
    ("event_type", "status", "credentials"),
    [
        ("openid4vc.issuance.offered", "offered", {"offered"}),
        ("openid4vc.issuance.completed", "completed", {"issued"}),
        ("openid4vc.issuance.failed", "failed", {"failed"}),
        ("openid4vc.issuance.partiallyIssued", "partiallyIssued", {"issued", "failed"}),
        ("openid4vc.issuance.expired", "expired", {"expired"}),
    ],
)
def test_an_issuance_is_in_the_state_that_its_event_announces(
    api: httpx.Client, event_type: str, status: str, credentials: set[str]
) -> None:
    issuance = data(api.get(f"{CREDS}/credentials/{happen(api, event_type)}"))
    assert issuance["status"] == status
    assert {each["status"] for each in issuance["credentials"]} == credentials
    assert issuance in data(api.get(f"{CREDS}/credentials"))


@pytest.mark.parametrize(
    ("event_type", "status", "shown", "error"),
    [
        ("openid4vc.verification.requested", "requested", 0, False),
        ("openid4vc.verification.verified", "verified", 1, False),
        ("openid4vc.verification.data", "verified", 1, False),
        ("openid4vc.verification.failed", "rejected", 0, True),
        ("openid4vc.verification.expired", "expired", 0, False),
    ],
)
def test_a_presentation_is_in_the_state_that_its_event_announces(
    api: httpx.Client, event_type: str, status: str, shown: int, error: bool
) -> None:
    presentation = data(api.get(f"{CREDS}/presentations/{happen(api, event_type)}"))
    assert (presentation["status"], len(presentation["credentials"])) == (status, shown)
    assert (presentation["error"] is not None) == error


def test_presentations_are_listed_and_filtered_by_id(api: httpx.Client) -> None:
    ids = [happen(api, "openid4vc.verification.data") for _ in range(3)]
    found = data(api.get(f"{CREDS}/presentations", params={"filter[id]": f"{ids[0]},{ids[2]},unknown"}))
    assert [each["id"] for each in found] == [ids[0], ids[2]]
    assert set(ids) <= {each["id"] for each in data(api.get(f"{CREDS}/presentations"))}


def test_a_presentation_moves_on_and_keeps_what_was_shown(api: httpx.Client) -> None:
    id_ = happen(api, "openid4vc.verification.requested")
    happen(api, "openid4vc.verification.verified", resourceId=id_, attributes={"a": [1, {"b": None}]})
    happen(api, "openid4vc.verification.data", resourceId=id_)
    presentation = data(api.get(f"{CREDS}/presentations/{id_}"))
    assert presentation["credentials"][0]["attributes"] == {"a": [1, {"b": None}]}
    assert presentation["updatedAt"] > presentation["createdAt"]
    for impossible in ("openid4vc.verification.expired", "openid4vc.verification.data"):
        answer = api.post("/sandbox/events", json={"eventType": impossible, "resourceId": id_})
        refused(answer, 409, "CONFLICT", "Conflict")


def test_a_presented_credential_may_be_invalid(api: httpx.Client) -> None:
    id_ = happen(api, "openid4vc.verification.data", isValid=False)
    credential = data(api.get(f"{CREDS}/presentations/{id_}"))["credentials"][0]
    assert credential["isValid"] is False
    assert credential["issues"]


def test_nothing_is_made_when_one_of_many_fails(api: httpx.Client) -> None:
    id_ = happen(api, "openid4vc.issuance.offered")
    twice = {"eventType": "openid4vc.issuance.failed", "resourceId": id_, "count": 2}
    refused(api.post("/sandbox/events", json=twice), 409, "CONFLICT", "Conflict")
    assert data(api.get(f"{CREDS}/credentials/{id_}"))["status"] == "offered"


def test_unknown_resources_are_missing(api: httpx.Client) -> None:
    for path in ("credentials/unknown", "presentations/unknown", "presentations/%00", "credentials/%F0%9F"):
        missing(api.get(f"{CREDS}/{path}"))
    wanted = {"eventType": "openid4vc.issuance.failed", "resourceId": "unknown"}
    missing(api.post("/sandbox/events", json=wanted))


# Errors and hostile input


def test_unknown_paths_and_methods_are_refused_in_the_same_envelope(api: httpx.Client) -> None:
    missing(api.get("/nowhere"))
    missing(api.get(f"{CREDS}/endpoints/"))
    answer = api.put(f"{CREDS}/endpoints")
    refused(answer, 405, "METHOD_NOT_ALLOWED", "Method Not Allowed")
    assert {each.strip() for each in answer.headers["allow"].split(",")} == {"GET", "HEAD", "POST"}


def test_a_body_of_another_type_or_size_is_refused(api: httpx.Client) -> None:
    path = f"{CREDS}/trusted-entities"
    other = api.post(path, content=b"name=x", headers={"content-type": "application/x-www-form-urlencoded"})
    refused(other, 415, "UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type")
    refused(api.post(path, json={"name": "x" * 1_100_000}), 413, "PAYLOAD_TOO_LARGE", "Payload Too Large")

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    chunked = api.post(path, content=chunks(), headers={"content-type": "application/json"})
    refused(chunked, 413, "PAYLOAD_TOO_LARGE", "Payload Too Large")


HOSTILE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b'{"name": "\x00"}',
    b'{"name": "\\ud800"}',
    b'{"name": "\\udfff\\ud800"}',
    b'{"name": NaN}',
    b'{"certificates": [NaN], "name": "x"}',
    b'{"certificates": [1e999], "name": "x"}',
    b'{"name": ' + b"9" * 5000 + b"}",
    b'{"certificates": [' + b"9" * 5000 + b'], "name": "x"}',
    b"[" * 100_000,
    b'{"certificates": ' + b"[" * 1000 + b"]" * 1000 + b', "name": "x"}',
    b'{"name": {"name": []}}',
    b'{"name": "x", "name\\u0000": 1}',
    b'{"name": "x", "constructor": {}}',
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_body_is_a_400(api: httpx.Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    for path in (f"{CREDS}/trusted-entities", f"{CREDS}/presets/credentials", USERS, "/sandbox/events"):
        invalid(api.post(path, content=body, headers=headers))


def test_deep_definitions_and_great_numbers_are_taken_or_refused_and_never_break(api: httpx.Client) -> None:
    for depth, expected in ((40, 200), (90, 200), (150, 400), (400, 400)):
        definition: dict[str, Any] = {"type": "string"}
        for _ in range(depth):
            definition = {"type": "object", "properties": {"a": definition}}
        wanted = PRESET | {"code": code(), "templateAttributes": {"a": definition}}
        answer = api.post(f"{CREDS}/presets/credentials", json=wanted)
        assert answer.status_code == expected, depth
        if expected == 200:
            id_ = answer.json()["data"]["id"]
            assert data(api.get(f"{CREDS}/templates/credentials/{id_}"))["attributes"] == {"a": definition}
    future = {"days": 10**4000, "months": 0.0, "years": 0}
    wanted = PRESET | {"code": code(), "validUntil": {"start": "issuance", "future": future}}
    preset = data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    assert preset["validUntil"]["future"] == {"days": 10**4000, "months": 0, "years": 0}


def test_unusual_text_comes_back_as_it_went_in(api: httpx.Client) -> None:
    name = "\u0000 \U0001f600 \u202e </script> '; DROP TABLE records; --"
    assert data(api.post(f"{CREDS}/trusted-entities", json={"name": name}), 201)["name"] == name


def test_many_at_once_are_one_account(sandbox: Platform, api: httpx.Client) -> None:
    name = f"u-{uuid4()}"

    def onboard(_: int) -> str:
        answer = httpx.post(sandbox.url + USERS, json={"username": name}, headers=dict(api.headers))
        return str(data(answer, 201)["tempPassword"])

    with ThreadPoolExecutor(8) as pool:
        passwords = list(pool.map(onboard, range(16)))
    assert len([password for password in passwords if password]) == 1


def test_the_documents_describe_every_path_that_is_routed(api: httpx.Client) -> None:
    platform_paths = api.get("/openapi.json").json()["paths"]
    sandbox_paths = api.get("/sandbox/openapi.json").json()["paths"]
    specified = {
        ("post", "/me-creds/api/presets/credentials"),
        ("get", "/me-creds/api/templates/credentials/{id}"),
        ("post", "/me-creds/api/certificates/csrs/{id}/import"),
        ("post", "/me-creds/api/trusted-entities"),
        ("post", "/me-creds/api/endpoints"),
        ("get", "/me-creds/api/endpoints"),
        ("delete", "/me-creds/api/endpoints/{id}"),
        ("post", "/consumer-onboarding/api/users"),
        ("get", "/consumer-onboarding/api/users"),
        ("get", "/consumer-onboarding/api/users/by-external-identifier/{externalIdentifier}"),
        ("get", "/consumer-onboarding/api/users/{username}/external-identifier"),
        ("patch", "/consumer-onboarding/api/users/{username}/idp-link"),
        ("post", "/me-wallet/api/credentials"),
        ("post", "/realms/{realm}/protocol/openid-connect/token"),
    }
    assert specified <= {(method, path) for path, methods in platform_paths.items() for method in methods}
    assert all(path.startswith("/sandbox/") for path in sandbox_paths)


def test_every_reference_of_a_document_leads_somewhere(api: httpx.Client) -> None:
    for path in ("/openapi.json", "/sandbox/openapi.json"):
        text = api.get(path).text
        schemas = api.get(path).json()["components"]["schemas"]
        found = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
        assert found
        assert found <= schemas.keys()
