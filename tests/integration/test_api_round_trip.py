"""`credhook api` as an operator uses it, once through all of the platform, against the sandbox as a process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plain
import pytest
from commands import credhook
from serving import Platform, platform

SD_JWT = {
    "credentialFormat": "sd-jwt",
    "templateName": "Staff",
    "code": "staff-card",
    "templateDescription": "Works here.",
    "templateAttributes": {
        "name": {"type": "string"},
        "desk": {"type": "object", "properties": {"floor": {"type": "number"}}},
    },
    "issuerConfig": {"signer": "did:web"},
    "validUntil": {"start": "issuance", "future": {"days": 0, "months": 0, "years": 1}},
}
MDOC = {
    "credentialFormat": "mdoc",
    "templateName": "Licence",
    "code": "licence",
    "templateDescription": "May drive.",
    "type": "org.example.licence.1",
    "templateAttributes": {"org.example": {"properties": {"photo": {"type": "binary"}}}},
    "validUntil": {"future": {"days": 1, "months": 0, "years": 0}},
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("platform")) as process:
        yield process


class Operator:
    """Somebody at a shell."""

    def __init__(self, sandbox: Platform, folder: Path) -> None:
        self._sandbox = sandbox
        self._folder = folder

    def types(self, *arguments: str, file: object = None) -> Any:
        """Run `credhook api …`, with a JSON file as its last argument if there is one; what it printed, parsed."""
        if file is not None:
            path = self._folder / "request.json"
            path.write_text(json.dumps(file))
            arguments = (*arguments, str(path))
        done = credhook("api", *arguments, environment=self._sandbox.environment)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout) if done.stdout else None


@pytest.fixture
def operator(sandbox: Platform, tmp_path: Path) -> Operator:
    return Operator(sandbox, tmp_path)


@pytest.mark.parametrize(("preset", "format_"), [(SD_JWT, "sd-jwt"), (MDOC, "mdoc")])
def test_a_preset_is_created_and_its_template_read_back(
    operator: Operator, preset: dict[str, object], format_: str
) -> None:
    created = operator.types("presets", "create", file=preset)
    assert (created["credentialFormat"], created["code"]) == (format_, preset["code"])
    template = operator.types("templates", "get", created["id"])
    assert (template["id"], template["name"]) == (created["id"], preset["templateName"])


def test_a_user_is_onboarded_twice_found_and_linked_twice(operator: Operator) -> None:
    user = {"email": "ada@example.org", "username": "ada", "firstName": "Ada", "externalIdentifier": "crm/7"}
    assert operator.types("users", "create", file=user)["tempPassword"]
    assert operator.types("users", "create", file=user)["tempPassword"] == ""
    assert operator.types("users", "find", "crm/7")["username"] == "ada"
    assert operator.types("users", "external-id", "ada")["externalIdentifier"] == "crm/7"
    assert "ada" in [one["username"] for one in operator.types("users", "list")]
    for _ in range(2):
        assert operator.types("users", "link", "ada")["linked"] is True
    for _ in range(2):
        assert operator.types("users", "link", "ada", "--unlink")["linked"] is False


def test_a_certificate_is_imported(operator: Operator, sandbox: Platform, tmp_path: Path) -> None:
    request = plain.get(f"{sandbox.url}/sandbox/csrs").json()["data"][0]
    chain = plain.post(f"{sandbox.url}/sandbox/csrs/{request['id']}/sign").raise_for_status().json()["data"]
    certificate = tmp_path / "certificate.pem"
    certificate.write_text(chain["certificate"])
    parents: list[str] = []
    for number, pem in enumerate(chain["parentCertificates"]):
        (tmp_path / f"parent{number}.pem").write_text(pem)
        parents += "--parent", str(tmp_path / f"parent{number}.pem")
    assert operator.types("certificates", "import", request["id"], str(certificate), *parents)["certificateId"]


def test_an_offer_is_accepted(operator: Operator, sandbox: Platform) -> None:
    issuance = sandbox.make("openid4vc.issuance.offered")
    offer = operator.types("issuances", "get", issuance)["offerUri"]
    assert {one["format"] for one in operator.types("wallet", "accept", offer)} == {"vc+sd-jwt"}
    assert operator.types("issuances", "get", issuance)["status"] == "completed"


def test_an_endpoint_is_registered_and_deleted(operator: Operator) -> None:
    created = operator.types("endpoints", "create", file={"url": "https://inbox.example/webhooks"})
    assert [one["id"] for one in operator.types("endpoints", "list")] == [created["id"]]
    assert operator.types("endpoints", "delete", created["id"]) is None
    assert operator.types("endpoints", "list") == []


def test_a_trusted_entity_is_registered(operator: Operator) -> None:
    entity = {"name": "Registry", "dids": [{"did": "did:web:registry.example", "name": "main"}]}
    assert operator.types("trusted-entities", "create", file=entity)["dids"] == entity["dids"]
