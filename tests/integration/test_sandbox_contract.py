"""The sandbox, held to the OpenAPI document it publishes: schemathesis sends what they allow and what they forbid.

It runs as a process of its own, in a folder of its own, and is judged by its report: what Python warns of in it is not
ours.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import plain
import pytest
from sandbox_api import FORM, TOKEN, authorized
from serving import Platform, platform
from webhook_endpoint import register, settled

#: Nothing is drawn from earlier runs, and dates must be dates.
CONFIGURATION = """
continue-on-failure = true
cache.enabled = false
generation = { database = "none", no-shrink = true }
checks.response_schema_conformance.validate-formats = true
warnings.fail-on = ["dictionary_mismatch", "missing_auth", "missing_deserializer", "unsupported_regex"]
"""

#: Operation → parameter → what names something that exists, so that more than its 404 is seen.
KNOWN = {
    "GET /me-creds/api/templates/credentials/{id}": {"path.id": "templates"},
    "GET /me-creds/api/credentials/{id}": {"path.id": "issuances"},
    "GET /me-creds/api/presentations/{id}": {"path.id": "presentations"},
    "POST /me-creds/api/presets/credentials": {"body.code": "codes"},
    "POST /me-creds/api/certificates/csrs/{id}/import": {"path.id": "requests", "body.certificate": "certificates"},
    "GET /consumer-onboarding/api/users/by-external-identifier/{externalIdentifier}": {
        "path.externalIdentifier": "names"
    },
    "GET /consumer-onboarding/api/users/{username}/external-identifier": {"path.username": "names"},
    "PATCH /consumer-onboarding/api/users/{username}/idp-link": {"path.username": "names"},
    "POST /me-wallet/api/credentials": {"body.credentialOffer": "offers"},
    "POST /sandbox/events": {"body.resourceId": "issuances"},
}

#: They ask for more than the document can say: what a certificate is, whether an offer has been used, which
#: attributes fit a template. Their 400 is an answer like any other.
CHOOSY = {
    "POST /me-creds/api/certificates/csrs/{id}/import",
    "POST /me-wallet/api/credentials",
    "POST /sandbox/events",
}

#: A minute or two, and many on a busy machine: schemathesis is all computation.
SHORT = pytest.param(("--max-examples", "15", "--seed", "1"), id="short", marks=pytest.mark.timeout(1_200))
LONG = pytest.param(("--max-examples", "300"), id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])


def examine(folder: Path, url: str, configuration: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Run every check against the server whose OpenAPI document is at `url`, and return the output and the report."""
    (folder / "configuration.toml").write_text(CONFIGURATION + configuration)
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "schemathesis"), "--config-file", "configuration.toml",
            "run", url, "--checks", "all", "--no-color", "--report", "json", "--report-json-path", "report.json",
            *arguments,
        ],
        # Without NO_PROXY the client searches the environment for a proxy at each of thousands of requests.
        cwd=folder, env={**os.environ, "NO_PROXY": "127.0.0.1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (folder / "report.json").exists(), done.stdout + done.stderr
    return done.stdout, json.loads((folder / "report.json").read_text())


def knowledge(sandbox: Platform) -> dict[str, list[str]]:
    """Let something happen there. Return what exists, by the names in `KNOWN`.

    No endpoint is left, so that an event costs nothing.
    """
    endpoint = register(sandbox, "https://localhost/webhooks")
    sandbox.make("openid4vc.verification.data")
    settled(sandbox)
    with authorized(sandbox) as api:
        api.delete(f"/me-creds/api/endpoints/{endpoint}").raise_for_status()

        def get(path: str) -> list[dict[str, str]]:
            found: list[dict[str, str]] = api.get(path).raise_for_status().json()["data"]
            return found

        offers = {"eventType": "openid4vc.issuance.offered", "count": 100}
        api.post("/sandbox/events", json=offers).raise_for_status()
        user = {"username": "known", "externalIdentifier": "known"}
        api.post("/consumer-onboarding/api/users", json=user).raise_for_status()
        request = get("/sandbox/csrs")[0]["id"]
        signed = api.post(f"/sandbox/csrs/{request}/sign").raise_for_status().json()["data"]
        issuances = get("/me-creds/api/credentials")
        return {
            "templates": [each["id"] for each in get("/sandbox/templates")],
            "issuances": [each["id"] for each in issuances],
            "offers": [each["offerUri"] for each in issuances],
            "presentations": [each["id"] for each in get("/me-creds/api/presentations")],
            "codes": [f"code-{number}" for number in range(1_000)],
            "requests": [request],
            "certificates": [signed["certificate"]],
            "names": ["known"],
        }


def configuration(described: Iterable[str], known: Mapping[str, list[str]]) -> str:
    """Where tokens come from, and how often each operation asks for something known."""
    form = ", ".join(f'{name} = "{value}"' for name, value in FORM.items())
    lines = [
        "[auth.dynamic.openapi.accessToken]",
        f'path = "{TOKEN}"',
        f'payload_content_type = "application/x-www-form-urlencoded"\npayload = {{ {form} }}',
        'extract_selector = "/access_token"',
        "[dictionaries]",
        # What JSON and TOML call a list of strings is the same here.
        *(f"{name}.values = {json.dumps(values)}" for name, values in known.items()),
    ]
    for operation in sorted(CHOOSY.union(KNOWN).intersection(described)):
        lines += ["[[operations]]", f'include-name = "{operation}"']
        for parameter, name in KNOWN.get(operation, {}).items():
            lines.append(f'parameters."{parameter}" = {{ dictionary = "{name}", probability = 0.8 }}')
        if operation in CHOOSY:
            lines.append(
                'checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409"]'
            )
    return "\n".join(lines)


@pytest.mark.parametrize("size", [SHORT, LONG])
@pytest.mark.parametrize("part", ["platform", "own"])
def test_the_sandbox_answers_as_its_document_says(tmp_path: Path, part: str, size: tuple[str, ...]) -> None:
    with platform(tmp_path, "--drop", "1000000", "--time-scale", "0") as sandbox:
        url = f"{sandbox.url}/openapi.json"
        paths = plain.get(url).raise_for_status().json()["paths"]
        chosen = {path: methods for path, methods in paths.items() if path.startswith("/sandbox/") == (part == "own")}
        described = {f"{method.upper()} {path}" for path, methods in chosen.items() for method in methods}
        only = ("--include-path-regex" if part == "own" else "--exclude-path-regex", "^/sandbox/")
        output, report = examine(tmp_path, url, configuration(described, knowledge(sandbox)), *only, *size)
    assert [(failure["type"], failure["operations"]) for failure in report["failures"]] == [], output
    assert (report["errors"], report["exit_code"]) == ([], 0), output
    rates = report["valid_rates"].items()
    assert {name for name, phases in rates if any(phase["accepted"] for phase in phases.values())} == described, output
    assert "Traceback" not in sandbox.text
