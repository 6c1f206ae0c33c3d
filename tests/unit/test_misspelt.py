"""A variable that nothing reads is named, with the one that it may be meant for."""

import re
from pathlib import Path

import pytest

from credhook.console.settings import ConsoleSettings
from credhook.receiver.settings import ReceiverSettings
from credhook.settings import KNOWN, correction, unknown_settings
from credhook.worker.settings import EndpointSettings, WorkerSettings

ROOT = Path(__file__).parents[2]


def test_what_is_known_is_what_is_read() -> None:
    read = {
        str(one.validation_alias)
        for settings in (ReceiverSettings, WorkerSettings, EndpointSettings, ConsoleSettings)
        for one in settings.model_fields.values()
    }
    others = {"CREDHOOK_LOG", "CREDHOOK_LOG_LEVEL", "CREDHOOK_DEV", "CREDHOOK_SANDBOX_URL"}
    assert {one for one in read if one.startswith("CREDHOOK_")} | others == KNOWN


def test_no_setting_is_defined_where_it_is_not_looked_for() -> None:
    texts = [path.read_text() for room in ("credhook", "receiver", "worker") for path in (ROOT / room).rglob("*.py")]
    assert {name for text in texts for name in re.findall(r'alias="(CREDHOOK_\w+)"', text)} <= KNOWN
    assert {name for text in texts for name in re.findall(r'environ\S*"(CREDHOOK_\w+)"', text)} <= KNOWN


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CREDHOOK_HANDLER", "CREDHOOK_HANDLERS"),
        ("CREDHOOK_APIURL", "CREDHOOK_API_URL"),
        ("CREDHOOK_WEBHOOK_SECRET", "CREDHOOK_WEBHOOK_SECRETS"),
        ("CREDHOOK_LOGLEVEL", "CREDHOOK_LOG_LEVEL"),
        ("credhook_concurency", "CREDHOOK_CONCURRENCY"),
    ],
)
def test_it_is_named_with_the_nearest(name: str, meant: str) -> None:
    assert unknown_settings([name, "PATH", meant]) == [name]
    assert correction(name) == f"{name} is not a setting; did you mean {meant}?"


def test_what_resembles_no_setting_is_named_alone() -> None:
    assert unknown_settings(["CREDHOOK_FROBNICATION"]) == ["CREDHOOK_FROBNICATION"]
    assert correction("CREDHOOK_FROBNICATION") == "CREDHOOK_FROBNICATION is not a setting; deploy/README.md lists them"


@pytest.mark.parametrize(
    "name",
    [
        "credhook_handlers",
        "CREDHOOK_SERVICE_HOST",
        "CREDHOOK_PORT_8000_TCP_ADDR",
        "CREDHOOK_RECEIVER_SERVICE_PORT_HTTP",
        "CREDHOOK_RECEIVER_PORT",
        "CREDHOOKS_HANDLER",
        "REDIS_URLS",
    ],
)
def test_what_is_read_or_is_not_ours_is_left_alone(name: str) -> None:
    assert unknown_settings([name]) == []
