"""Write to the tables of a Django project. DJANGO_SETTINGS_MODULE names its settings."""

import django
from django.conf import settings
from django.db import connections

from credhook import FetchedEvent, Handlers, Issuance, SyncContext

handlers = Handlers("members")


@handlers.startup
def set_up() -> None:
    """Load the settings and the models, once in each worker process."""
    settings.LOGGING_CONFIG = None  # The worker writes all log lines. Django's may show queries, and so claims.
    django.setup()


@handlers.on("openid4vc.issuance.completed")
def admit(event: FetchedEvent[Issuance], _: SyncContext) -> None:
    """Note a member for each completed issuance. A second run changes nothing."""
    from members.models import Member  # Models can be imported once Django is set up.

    try:
        Member.objects.get_or_create(issuance=event.resource_id)
    finally:
        connections.close_all()  # Each run has its own thread, and Django a connection for each thread.
