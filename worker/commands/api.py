"""`credhook api`: every operation of the platform from the command line, JSON in and JSON out.

Standard output is the answer, whole: whoever runs an operation has asked for it, temporary passwords and claims
included. What goes wrong is one line on standard error; exit code 1 is the platform's refusal, 2 a mistake in the call.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import IO, Any, TypeVar

import click
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, InvalidRequest
from credhook.worker.api.models import (
    CertificateRequest,
    EndpointRequest,
    PresetRequest,
    TrustedEntityRequest,
    UserRequest,
)
from credhook.worker.api.wire import Wire
from credhook.worker.settings import PlatformSettings

A = TypeVar("A")


class WrongInput(click.ClickException):
    """A file does not hold what the operation needs."""

    exit_code = 2


@click.group()
def api() -> None:
    """Call the platform's API, JSON in and out.

    FILE is a JSON file with the fields of the platform's specification, or - for standard input. The answer goes to
    standard output as JSON. Exit codes: 0 done, 1 the platform refused or did not answer, 2 the call is wrong.

    CREDHOOK_API_URL, CREDHOOK_TOKEN_URL, CREDHOOK_CLIENT_ID and CREDHOOK_CLIENT_SECRET say where and as whom.
    """


def _group(name: str, help_: str) -> click.Group:
    group = click.Group(name, help=help_)
    api.add_command(group)
    return group


_users = _group("users", "Onboard and find users of the tenant.")
_presets = _group("presets", "Create credential presets.")
_templates = _group("templates", "Read credential templates.")
_certificates = _group("certificates", "Import certificates for signing requests.")
_trusted_entities = _group("trusted-entities", "Register issuers that the organisation trusts.")
_endpoints = _group("endpoints", "Manage webhook endpoints by hand; `credhook endpoints` does it from the handlers.")
_wallet = _group("wallet", "Put credentials into the wallet.")
_issuances = _group("issuances", "Read issuances.")
_presentations = _group("presentations", "Read presentations.")


def _add(group: click.Group, name: str, argument: str, method: str, help_: str, *, reads: Any = None) -> None:
    """Add the command that calls one method of the client with its argument, if it has one.

    `reads` is the model of the argument if that is a file.
    """
    kind = None if reads is None else click.File("rb")

    def run(**values: Any) -> None:
        if reads is not None:
            values[argument] = _read(values[argument], TypeAdapter(reads))
        _run(lambda platform: attrgetter(method)(platform)(*values.values()))

    arguments: list[click.Parameter] = [click.Argument([argument], type=kind)] if argument else []
    group.add_command(click.Command(name, callback=run, params=arguments, help=help_))


_add(_users, "list", "", "users.list", "Print the tenant's users.")
_add(
    _users,
    "create",
    "file",
    "users.create",
    """Create a user, or resolve one that exists.

    FILE: {"email", "username", "firstName", "lastName", "externalIdentifier"}, with an email or a username.
    The answer's tempPassword is empty if the account existed before; otherwise it is shown here and nowhere else.
    """,
    reads=UserRequest,
)
_add(
    _users,
    "find",
    "external_id",
    "users.by_external_identifier",
    "Print the user with this external identifier.",
)
_add(_users, "external-id", "username", "users.external_identifier", "Print the external identifier of a user.")
_add(
    _presets,
    "create",
    "file",
    "presets.create",
    """Create a credential preset.

    FILE: {"credentialFormat": "sd-jwt" or "mdoc", "templateName", "code", "templateDescription",
    "templateAttributes", …}. For mdoc "type" and "validUntil" are needed as well.
    """,
    reads=PresetRequest,
)
_add(_templates, "get", "id", "templates.get", "Print a credential template.")
_add(
    _trusted_entities,
    "create",
    "file",
    "trusted_entities.create",
    'Register a trusted entity. FILE: {"name", "dids": [{"did", "name"}], "certificates"}, name is needed.',
    reads=TrustedEntityRequest,
)
_add(_endpoints, "list", "", "endpoints.list", "Print the organisation's webhook endpoints, URLs whole.")
_add(
    _endpoints,
    "create",
    "file",
    "endpoints.create",
    'Register a webhook endpoint. FILE: {"url", "id", "filterTypes": [event types]}, url is needed.',
    reads=EndpointRequest,
)
_add(_endpoints, "delete", "id", "endpoints.delete", "Remove a webhook endpoint. Nothing is printed.")
_add(_issuances, "get", "id", "issuances.get", "Print an issuance.")
_add(_issuances, "list", "", "issuances.list", "Print issuances: the page that the platform gives first.")
_add(
    _presentations,
    "get",
    "id",
    "presentations.get",
    "Print a presentation, claims included. A verifier can be set up so that they are readable only once.",
)


@_users.command("link")
@click.argument("username")
@click.option("--unlink", is_flag=True, help="Remove the link instead.")
def link_user(*, username: str, unlink: bool) -> None:
    """Link a user to the tenant's identity provider. Repeating it changes nothing."""
    _run(lambda platform: platform.users.link_identity(username, enabled=not unlink))


@_certificates.command("import")
@click.argument("csr_id")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--parent",
    "parents",
    type=click.File("rb"),
    multiple=True,
    help="An intermediate certificate, PEM. Repeat it from leaf-adjacent to root-adjacent.",
)
def import_certificate(*, csr_id: str, file: IO[bytes], parents: Sequence[IO[bytes]]) -> None:
    """Import a certificate for the signing request CSR_ID. FILE is the certificate itself, PEM."""
    try:
        request = CertificateRequest(certificate=_text(file), parent_certificates=tuple(map(_text, parents)) or None)
    except ValidationError as error:
        raise WrongInput(_mistakes(error)) from None
    _run(lambda platform: platform.certificates.import_(csr_id, request))


@_wallet.command("accept")
@click.argument("offer")
def accept_offer(offer: str) -> None:
    """Accept a credential offer. OFFER is its URI, or - to read it from standard input, unseen by other processes."""
    credential_offer = _text(sys.stdin.buffer).strip() if offer == "-" else offer
    _run(lambda platform: platform.wallet.accept(credential_offer))


@_presentations.command("list")
@click.option("--id", "id_", metavar="ID", help="Only the presentation with this id.")
def list_presentations(id_: str | None) -> None:
    """Print presentations: the page that the platform gives first."""
    _run(lambda platform: platform.presentations.list(id_))


def _run(operation: Callable[[AsyncApi], Coroutine[Any, Any, Wire | Sequence[Wire] | None]]) -> None:
    """Have the platform do something, and print its answer."""

    async def run() -> Wire | Sequence[Wire] | None:
        async with AsyncApi.from_settings(PlatformSettings()) as platform:
            return await operation(platform)

    try:
        answer = asyncio.run(run())
    except ApiError as error:
        unsendable = isinstance(error, InvalidRequest) and error.status is None
        raise (WrongInput if unsendable else click.ClickException)(_told(error)) from None
    if answer is not None:
        # Escaped to ASCII: no encoding of the terminal matters, and no value can act on it.
        click.echo(json.dumps(_json(answer), indent=2))


def _json(answer: Wire | Sequence[Wire]) -> Any:
    if isinstance(answer, Wire):
        return answer.model_dump(mode="json", exclude_unset=True)
    return [_json(each) for each in answer]


def _read(file: IO[bytes], shape: TypeAdapter[A]) -> A:
    """Read a request, in the platform's own spelling."""
    try:
        document = from_json(file.read(), allow_inf_nan=False)
        return shape.validate_python(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise WrongInput(f"{_name(file)}: {_mistakes(error)}") from None
    except ValueError as error:
        raise WrongInput(f"{_name(file)}: is not JSON: {error}") from None


def _text(file: IO[bytes]) -> str:
    try:
        return file.read().decode()
    except UnicodeDecodeError:
        raise WrongInput(f"{_name(file)}: is not text") from None


def _name(file: IO[bytes]) -> str:
    """Return the file's name as it was given. Standard input need not have one."""
    name = getattr(file, "name", "<stdin>")
    return "standard input" if name == "<stdin>" else str(name)


def _mistakes(error: ValidationError) -> str:
    """Say what is wrong where, without repeating what was given."""
    return "; ".join(
        ": ".join([".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")]).removeprefix(": ")
        for each in error.errors(include_input=False, include_url=False)
    )


def _told(error: ApiError) -> str:
    """Add the platform's own words, which are about the operator's own request and may be read here."""
    words = " ".join((error.errors[0].detail or "").split()) if error.errors else ""
    readable = "".join(letter for letter in words if letter.isprintable())
    return f"{error}: {readable}" if readable else str(error)
