"""`credhook api`: every operation of the platform from the command line, JSON in and JSON out.

Standard output is the whole answer, temporary passwords and claims included, since the operator has asked for it. An
error is one line on standard error. Exit code 1 means that the platform refused, 2 that the call is wrong.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from typing import IO, Any, Final, TypeVar

import click
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from credhook.settings import PlatformSettings
from credhook.terminal import plain
from credhook.worker.api.client import AsyncApi, Sender
from credhook.worker.api.errors import ApiError, InvalidRequest, Unavailable, with_hint
from credhook.worker.api.models import (
    CertificateRequest,
    EndpointRequest,
    PresetRequest,
    ResponseModel,
    TrustedEntityRequest,
    UserRequest,
    certificates_in,
    data_of,
)
from credhook.worker.api.operations import Call

T = TypeVar("T")
_Printed = ResponseModel | Sequence[ResponseModel] | None

#: Seconds for which a command repeats a request that may soon succeed. Specification: Errors, rule 3.
RETRY_SECONDS: Final = 3.0


class WrongInput(click.ClickException):
    """A file does not hold the fields that the operation needs."""

    exit_code = 2


@click.group()
def api() -> None:
    """Call the platform's API, JSON in and out.

    FILE is a JSON file with the fields of the platform's specification, or - for standard input. The answer goes to
    standard output as JSON. A list is printed whole; a refusal that may pass, such as a 500, is retried for 3 seconds.
    Exit codes: 0 done, 1 the platform refused or did not answer, 2 the call is wrong.

    CREDHOOK_API_URL, CREDHOOK_TOKEN_URL, CREDHOOK_CLIENT_ID and CREDHOOK_CLIENT_SECRET name platform and client.
    """


_GROUPS: Final = {
    "users": "Onboard and find users of the tenant.",
    "presets": "Create credential presets.",
    "templates": "Read credential templates.",
    "certificates": "Import certificates for signing requests.",
    "trusted-entities": "Register issuers that the organisation trusts.",
    "endpoints": "Manage webhook endpoints by hand; `credhook endpoints` does it from the handlers.",
    "wallet": "Put credentials into the wallet.",
    "issuances": "Read issuances.",
    "presentations": "Read presentations.",
}

#: Group, command and argument → help. A command has the name of its operation, unless `_OPERATIONS` says otherwise.
_COMMANDS: Final = {
    "users list": "Print the tenant's users.",
    "users create FILE": """Create a user, or resolve an existing user.

        FILE: {"email", "username", "firstName", "lastName", "externalIdentifier"}, with an email or a username.
        The answer's tempPassword is empty if the account existed before; otherwise it is shown here and nowhere else.
        """,
    "users find EXTERNAL_ID": "Print the user with this external identifier.",
    "users external-id USERNAME": "Print the external identifier of a user.",
    "presets create FILE": """Create a credential preset.

        FILE: {"credentialFormat": "sd-jwt" or "mdoc", "templateName", "code", "templateDescription",
        "templateAttributes", …}. For mdoc "type" and "validUntil" are needed as well.
        """,
    "templates get ID": "Print a credential template.",
    "trusted-entities create FILE": 'Register a trusted entity. FILE: {"name", "dids": [{"did", "name"}], '
    '"certificates"}, name is needed.',
    "endpoints list": "Print the organisation's webhook endpoints with their whole URLs.",
    "endpoints create FILE": 'Register a webhook endpoint. FILE: {"url", "id", "filterTypes": [event types]}, url is '
    "needed.",
    "endpoints delete ID": "Remove a webhook endpoint. Nothing is printed.",
    "issuances get ID": "Print an issuance.",
    "issuances list": "Print all issuances.",
    "presentations get ID": "Print a presentation, claims included. With some verifiers, claims are readable only "
    "once.",
    "presentations list": "Print all presentations, claims included.",
}
_OPERATIONS: Final = {
    "users find": "users.by_external_identifier",
    "users external-id": "users.external_identifier",
}

#: Operation → the type of its FILE.
_FILES: Final[Mapping[str, TypeAdapter[Any]]] = {
    "users.create": TypeAdapter(UserRequest),
    "presets.create": TypeAdapter(PresetRequest),
    "trusted_entities.create": TypeAdapter(TrustedEntityRequest),
    "endpoints.create": TypeAdapter(EndpointRequest),
}


def _command(name: str, arguments: Sequence[str], operation: str, help_: str) -> click.Command:
    shape = _FILES.get(operation)

    def run(**values: Any) -> None:
        sent = [_read(value, partial(_request, shape)) if shape else value for value in values.values()]
        _print(lambda platform: attrgetter(operation)(platform)(*sent))

    kind = click.File("rb") if shape else None
    params: list[click.Parameter] = [click.Argument([argument.lower()], type=kind) for argument in arguments]
    return click.Command(name, callback=run, params=params, help=help_)


_groups = {name: click.Group(name, help=help_) for name, help_ in _GROUPS.items()}
for _group in _groups.values():
    api.add_command(_group)
for _usage, _help in _COMMANDS.items():
    _noun, _verb, *_arguments = _usage.split()
    _operation = _OPERATIONS.get(f"{_noun} {_verb}", f"{_noun.replace('-', '_')}.{_verb}")
    _groups[_noun].add_command(_command(_verb, _arguments, _operation, _help))


@_groups["users"].command("link")
@click.argument("username")
@click.option("--unlink", is_flag=True, help="Remove the link instead.")
def link_user(*, username: str, unlink: bool) -> None:
    """Link a user to the tenant's identity provider. Repeating it changes nothing."""
    _print(lambda platform: platform.users.link_identity(username, enabled=not unlink))


@_groups["certificates"].command("import")
@click.argument("csr_id")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--parent",
    "parents",
    type=click.File("rb"),
    multiple=True,
    help="PEM file of an intermediate certificate. Repeat it, from the leaf's issuer towards the root.",
)
def import_certificate(*, csr_id: str, file: IO[bytes], parents: Sequence[IO[bytes]]) -> None:
    """Import a certificate for the signing request CSR_ID.

    FILE is PEM: the certificate, and its intermediates after it if they are in the same file.
    """
    files = (_read(file_, lambda pem: certificates_in(pem.decode(errors="replace"))) for file_ in (file, *parents))
    leaf, *chain = itertools.chain.from_iterable(files)
    request = CertificateRequest(certificate=leaf, parent_certificates=tuple(chain) or None)
    _print(lambda platform: platform.certificates.import_(csr_id, request))


@_groups["wallet"].command("accept")
@click.argument("offer")
def accept_offer(offer: str) -> None:
    """Accept a credential offer. OFFER is its URI, or - to read it from standard input, unseen by other processes."""
    credential_offer = _read(sys.stdin.buffer, bytes.decode).strip() if offer == "-" else offer
    _print(lambda platform: platform.wallet.accept(credential_offer=credential_offer))


class _ReportingSender(Sender):
    """Reports a POST whose answer was a 500. It may have worked, and is sent again."""

    async def _send(self, call: Call[T]) -> T:
        try:
            return await super()._send(call)
        except Unavailable as error:
            if call.operation.method == "POST" and (error.status or 0) >= HTTPStatus.INTERNAL_SERVER_ERROR:
                click.echo(
                    f"{call.operation.name}: answered {error.status}, and may have worked all the same", err=True
                )
            raise


def call(operation: Callable[[AsyncApi], Coroutine[Any, Any, T]]) -> T:
    """Return the platform's answer. A refusal is one line and exit code 1; a wrong call is one line and exit code 2."""

    async def run() -> T:
        sender = _ReportingSender.from_settings(PlatformSettings(), retry_seconds=RETRY_SECONDS)
        async with AsyncApi(sender) as platform:
            return await operation(platform)

    try:
        return asyncio.run(run())
    except ApiError as error:
        unsendable = isinstance(error, InvalidRequest) and error.status is None
        raise (WrongInput if unsendable else click.ClickException)(_with_detail(error)) from None


def _print(
    operation: Callable[[AsyncApi], Coroutine[Any, Any, ResponseModel | Sequence[ResponseModel] | None]],
) -> None:
    answer = call(operation)
    if answer is not None:
        # ASCII suits every encoding, and no value can act on the terminal.
        click.echo(json.dumps(answer, indent=2, default=lambda model: data_of(model.raw)))


def _request(shape: TypeAdapter[T], document: bytes) -> T:
    """Return a request in the platform's own spelling."""
    return shape.validate_python(from_json(document, allow_inf_nan=False), by_alias=True, by_name=False)


def _read(file: IO[bytes], parse: Callable[[bytes], T]) -> T:
    """Return the parsed content of the file, or raise an error that names the file."""
    try:
        return parse(file.read())
    except ValueError as error:
        wrong = _mistakes(error) if isinstance(error, ValidationError) else error
        name = getattr(file, "name", "<stdin>")  # Standard input need not have one.
        raise WrongInput(f"{'standard input' if name == '<stdin>' else name}: {wrong}") from None


def _mistakes(error: ValidationError) -> str:
    """Return place and message of each mistake, without the values."""
    return "; ".join(
        ": ".join([".".join(map(str, mistake["loc"])), mistake["msg"].removeprefix("Value error, ")]).removeprefix(": ")
        for mistake in error.errors(include_input=False, include_url=False)
    )


def _with_detail(error: ApiError) -> str:
    """Add the platform's own words. They are about the operator's own request, so the operator may read them."""
    words = " ".join((error.errors[0].detail or "").split()) if error.errors else ""
    return with_hint(error, plain(words))
