"""`credhook console` as a process, and a browser without JavaScript that has logged in to it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx

from credhook.sandbox.local.environment import free_port
from support import plain
from support.process.serving import Process
from support.waiting import until

TOKEN = "Canary-token-0123456789abcdef"


class Console(Process):
    """`credhook console` on a free port."""

    def __init__(self, folder: Path, redis_url: str, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {"REDIS_URL": redis_url, "CREDHOOK_CONSOLE_TOKEN": TOKEN} | settings
        command = ("-m", "credhook", "console", "--port", str(self.port))
        super().__init__(folder / "console.log", *command, environment=environment)
        until(lambda: self.answers(f"{self.url}/login"), what="the console's door")

    def visitor(self) -> httpx.Client:
        """Somebody who has not logged in."""
        return plain.Client(base_url=self.url, headers={"origin": self.url}, follow_redirects=True)

    @contextmanager
    def operator(self) -> Iterator[httpx.Client]:
        """Somebody who has."""
        with self.visitor() as client:
            client.post("/login", data={"token": TOKEN, "who": "ada"}).raise_for_status()
            yield client

    def told(self, **fields: str) -> list[dict[str, Any]]:
        """The lines of its log that have these fields."""
        lines = (json.loads(line) for line in self.text.splitlines() if line.startswith("{"))
        return [line for line in lines if fields.items() <= line.items()]


def fields(page: str, action: str) -> dict[str, str]:
    """What the form of the page that posts there would send, but for what one types."""
    (form,) = re.findall(rf'<form method="post" action="{re.escape(action)}".*?</form>', page, re.DOTALL)
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in hidden}
