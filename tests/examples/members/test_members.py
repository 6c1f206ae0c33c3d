"""The handler against a table in a temporary folder."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.backends.signals import connection_created
from members.handlers import admit, set_up

from credhook.testing import event, run

COMPLETED = "openid4vc.issuance.completed"


@pytest.fixture(scope="module", autouse=True)
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create the table, once: a process has one Django."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DJANGO_SETTINGS_MODULE", "members.settings")
        environment.setenv("MEMBERS_DATABASE", str(tmp_path_factory.mktemp("members") / "database"))
        set_up()
        call_command("migrate", run_syncdb=True, verbosity=0)
        yield
    connections.close_all()


def members() -> list[str]:
    from members.models import Member

    return list(Member.objects.order_by("issuance").values_list("issuance", flat=True))


def test_completed_issuance_has_a_member() -> None:
    completed = event(COMPLETED)
    assert run(admit, completed, state=set_up).outcome == "done"
    assert completed.resource_id in members()


def test_run_leaves_no_connection_open() -> None:
    opened: list[Any] = []

    def note(connection: Any, **_: object) -> None:
        opened.append(connection)

    connection_created.connect(note)
    assert run(admit, event(COMPLETED), state=None).outcome == "done"
    connection_created.disconnect(note)
    assert [each.connection for each in opened] == [None]


def test_second_run_changes_nothing() -> None:
    completed = event(COMPLETED)
    assert [run(admit, completed, state=None).outcome for _ in "12"] == ["done", "done"]
    assert members().count(completed.resource_id) == 1
