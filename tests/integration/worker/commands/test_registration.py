"""`credhook endpoints` against the sandbox, as an operator types it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.platform.sandbox_api import registered
from support.process.commands import Done, invoke
from support.process.serving import Platform

BUILT_IN = "credhook.worker.handlers.logging_handler"
URL = "https://inbox.example/webhooks"

Run = Callable[..., Done]


@pytest.fixture
def endpoints(sandbox: Platform, swept: None) -> Run:
    """Run `credhook endpoints …`; what it has registered is gone afterwards."""

    def run(*arguments: str, **settings: str) -> Done:
        environment = {**sandbox.environment, "CREDHOOK_PUBLIC_URL": URL, "CREDHOOK_HANDLERS": BUILT_IN, **settings}
        return invoke("endpoints", *arguments, environment=environment)

    return run


def test_apply_changes_the_endpoint_only_with_its_types(endpoints: Run, sandbox: Platform) -> None:
    assert endpoints("plan", "--all").returncode == 3
    first = endpoints("apply", "--all")
    assert (first.returncode, first.stderr) == (0, "")
    (old,) = registered(sandbox)
    assert old["url"] == URL
    assert "nothing to do" in endpoints("apply", "--all").stdout
    assert registered(sandbox) == [old]
    assert endpoints("plan", "--all").returncode == 0
    types = ["--type", "openid4vc.issuance.completed", "--type", "openid4vc.verification.data"]
    planned = endpoints("plan", *types)
    assert planned.returncode == 3
    assert str(old["id"]) in planned.stdout
    assert registered(sandbox) == [old]

    assert endpoints("apply", *types).returncode == 0
    (new,) = registered(sandbox)
    assert new["id"] != old["id"]
    assert new["filterTypes"] == ["openid4vc.issuance.completed", "openid4vc.verification.data"]


def test_the_handlers_decide_which_types_are_wanted(endpoints: Run, sandbox: Platform, tmp_path: Path) -> None:
    (tmp_path / "plugin_two.py").write_text(
        "from credhook import Handlers\nhandlers = Handlers('two')\n"
        "@handlers.on('openid4vc.verification.failed')\ndef f(e, c): ...\n"
    )
    done = endpoints("apply", CREDHOOK_HANDLERS="plugin_two", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [one["filterTypes"] for one in registered(sandbox)] == [["openid4vc.verification.failed"]]
    shown = invoke("handlers", "list", environment={"CREDHOOK_HANDLERS": "plugin_two", "PYTHONPATH": str(tmp_path)})
    assert shown.stdout.splitlines()[1].split() == ["two.f", "thread", "openid4vc.verification.failed"]
    (tmp_path / "plugin_none.py").write_text("from credhook import Handlers\nhandlers = Handlers('none')\n")
    none = endpoints("apply", CREDHOOK_HANDLERS="plugin_none", PYTHONPATH=str(tmp_path))
    assert (none.returncode, "want no event type" in none.stderr) == (2, True)


def test_list_and_delete(endpoints: Run, sandbox: Platform) -> None:
    assert "no endpoints" in endpoints("list").stdout
    endpoints("apply", "--all", CREDHOOK_PUBLIC_URL=URL + "/abcdefghijklmnopqrstuvwxyz")
    (one,) = registered(sandbox)
    listed = endpoints("list").stdout
    assert f"{one['id']}  {URL}/abcd…  all events   20" in listed  # The year in which it was created.
    assert "abcdefghijklmnopqrstuvwxyz" not in listed
    assert endpoints("delete", str(one["id"])).returncode == 0
    assert registered(sandbox) == []
    missing = endpoints("delete", str(one["id"]))
    assert (missing.returncode, missing.stdout) == (0, f"nothing to do: there is no endpoint {one['id']}\n")


def test_deployments_do_not_fight_and_one_that_has_moved_says_so(endpoints: Run, sandbox: Platform) -> None:
    other = {"CREDHOOK_QUEUE": "other", "CREDHOOK_PUBLIC_URL": URL + "/other"}
    moved = {"CREDHOOK_PUBLIC_URL": "https://new.example/webhooks"}
    for settings in (other, {}, moved):
        assert endpoints("apply", **settings).returncode == 0
    assert len(registered(sandbox)) == 3
    assert endpoints("plan", "--moved", **moved).stdout.count("  delete  ") == 1
    assert endpoints("apply", "--moved", **moved).stdout.endswith("\ndone\n")
    assert [one["url"] for one in registered(sandbox)] == [URL + "/other", moved["CREDHOOK_PUBLIC_URL"]]


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "words"),
    [
        (("apply",), {"CREDHOOK_PUBLIC_URL": "http://plain.example"}, 2, "CREDHOOK_PUBLIC_URL"),
        (("apply", "--type", "openid4vc.issuance.complete"), {}, 2, "openid4vc.issuance.completed"),
        (("plan", "--all", "--type", "openid4vc.issuance.offered"), {}, 2, "exclude"),
        (("list",), {"CREDHOOK_CLIENT_SECRET": "wrong"}, 1, "401"),
        (("list",), {"CREDHOOK_API_URL": "http://127.0.0.1:9"}, 1, "endpoints.list"),
        (("list",), {"CREDHOOK_CLIENT_ID": ""}, 2, "CREDHOOK_CLIENT_ID"),
    ],
)
def test_endpoint_errors_are_one_line(
    endpoints: Run, arguments: tuple[str, ...], settings: dict[str, str], code: int, words: str
) -> None:
    done = endpoints(*arguments, **settings)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "wrong" not in done.stderr
