"""`credhook console` as a process, and a browser without JavaScript that has logged in to it."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from credhook.sandbox.local.environment import free_port
from support import plain
from support.process.serving import Process
from support.waiting import until

PASSWORD = "Canary-password-0123456789:é"


class Console(Process):
    """`credhook console` on a free port."""

    def __init__(self, folder: Path, redis_url: str, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {"REDIS_URL": redis_url, "CREDHOOK_CONSOLE_PASSWORD": PASSWORD} | settings
        command = ("-m", "credhook", "console", "--port", str(self.port))
        super().__init__(folder / "console.log", *command, environment=environment)
        until(lambda: self.answers(f"{self.url}/static/icon.svg", auth=("ada", PASSWORD)), what="the console")

    def visitor(self) -> httpx.Client:
        """Return a browser whose user does not know the password."""
        return plain.Client(base_url=self.url, headers={"origin": self.url}, follow_redirects=True)

    def operator(self, name: str = "ada") -> httpx.Client:
        """Return a browser whose user has logged in."""
        client = self.visitor()
        client.auth = httpx.BasicAuth(name, PASSWORD)
        return client

    def link(self, name: str = "ada") -> str:
        """Return the address of the first page with name and password, as the console prints it."""
        return self.url.replace("://", f"://{name}:{quote(PASSWORD, safe='')}@") + "/"

    def told(self, **fields: str) -> list[dict[str, Any]]:
        """The lines of its log that have these fields."""
        lines = (json.loads(line) for line in self.text.splitlines() if line.startswith("{"))
        return [line for line in lines if fields.items() <= line.items()]


def fields(page: str, action: str) -> dict[str, str]:
    """What the form of the page that posts there would send, but for what one types."""
    (form,) = re.findall(rf'<form method="post" action="{re.escape(action)}".*?</form>', page, re.DOTALL)
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in hidden}


def act(client: httpx.Client, verb: str, *query: tuple[str, str], **typed: str) -> httpx.Response:
    """Ask for a replay or an erasure, and press the button below the count."""
    asked = client.get(f"/{verb}", params=list(query))
    assert asked.status_code == 200, asked.text
    return client.post(f"/{verb}", data=fields(asked.text, f"/{verb}") | typed)


def ended(client: httpx.Client, job: httpx.URL) -> str:
    """Return the page of the job, once it is over."""

    def page() -> str:
        text = client.get(job).text
        return text if re.search(r"job-(done|stopped|failed)", text) else ""

    return until(page, what="the end of the job")
