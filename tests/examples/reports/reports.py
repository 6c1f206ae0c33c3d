"""Report failed handlers to Sentry: class and places of the error, ids and types, no claims."""

import os

import sentry_sdk
from sentry_sdk.types import Event, Hint

from credhook import FailedRun, FetchedEvent, Handlers, Issuance, SyncContext

handlers = Handlers("reports")


@handlers.startup
def connect() -> None:
    """Start the client, which sends in a thread of its own.

    Integrations would add requests and log lines, and tracebacks would show variables. Both may hold claims.
    """
    sentry_sdk.init(
        os.environ["SENTRY_DSN"],
        default_integrations=False,
        include_local_variables=False,
        max_breadcrumbs=0,
        before_send=without_messages,
    )


@handlers.shutdown
def disconnect(_: None) -> None:
    """Send what is left."""
    sentry_sdk.flush(timeout=3)


@handlers.on_error
def report(failure: FailedRun, _: SyncContext) -> None:
    """Report each failed run. A run that is tried again is a warning."""
    with sentry_sdk.new_scope() as scope:
        scope.set_level("warning" if failure.will_retry else "error")
        scope.set_tags({"handler": failure.handler, "event": failure.event.type, "attempt": failure.event.attempt})
        scope.set_extra("webhook_id", failure.event.webhook_id)
        scope.capture_exception(failure.error)


@handlers.on_give_up
def report_lost(failure: FailedRun, _: SyncContext) -> None:
    """Report an event that its handler will not see again. `credhook events replay` puts it back."""
    sentry_sdk.capture_message(f"{failure.handler} was given up for {failure.event.webhook_id}", level="fatal")


def without_messages(event: Event, _: Hint) -> Event:
    """Return the report without the messages of errors, which may hold claims."""
    for error in event.get("exception", {}).get("values", []):
        error["value"] = ""
    return event


@handlers.on("openid4vc.issuance.completed", give_up_on=LookupError)
def count_credentials(event: FetchedEvent[Issuance], context: SyncContext) -> None:
    """Stand for your own handler: fail if the issuance has no credential."""
    context.log.info("issued", first=event.details.credentials[0].id)
