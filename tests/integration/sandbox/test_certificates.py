"""Signing requests of the sandbox, the certificates imported for them, and entities that are trusted."""

from datetime import datetime
from typing import Any

import httpx
import pytest
from cryptography import x509

from support.platform.sandbox_api import CREDS, data, invalid, missing


def signing_request(api: httpx.Client, key_type: str = "P-256") -> dict[str, Any]:
    return next(each for each in data(api.get("/sandbox/csrs")) if each["keyType"] == key_type)


@pytest.mark.parametrize("key_type", ["P-256", "Ed25519"])
def test_a_signed_request_is_imported(api: httpx.Client, key_type: str) -> None:
    request = signing_request(api, key_type)
    chain = data(api.post(f"/sandbox/csrs/{request['id']}/sign"))
    record = data(api.post(f"{CREDS}/certificates/csrs/{request['id']}/import", json=chain))
    leaf = x509.load_pem_x509_certificate(chain["certificate"].encode())
    assert record["certificateSigningRequest"] == request["certificateSigningRequest"]
    identifier = leaf.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert record["subjectKeyIdentifier"] == identifier.hex()
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


def test_sandbox_refuses_certificates_that_do_not_fit_the_request(api: httpx.Client) -> None:
    request = signing_request(api)
    other = data(api.post(f"/sandbox/csrs/{signing_request(api, 'Ed25519')['id']}/sign"))
    twice = data(api.post(f"/sandbox/csrs/{request['id']}/sign"))["certificate"] * 2
    path = f"{CREDS}/certificates/csrs/{request['id']}/import"
    assert "another key" in invalid(api.post(path, json=other))
    for text in ("", "nonsense", "é", request["certificateSigningRequest"], twice):
        assert "PEM" in invalid(api.post(path, json={"certificate": text}))
    assert "PEM" in invalid(api.post(path, json=other | {"parentCertificates": ["nonsense"]}))
    missing(api.post(f"{CREDS}/certificates/csrs/unknown/import", json=other))
