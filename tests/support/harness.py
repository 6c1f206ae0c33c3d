"""What a test needs to run workers against the sandbox: a harness, with a plugin to write into."""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from accepting import accept, reached
from growing_files import whole_lines
from redis import Redis
from serving import Platform, Process, running
from waiting import until

COMPLETED = "openid4vc.issuance.completed"
DATA = "openid4vc.verification.data"

#: Seconds: what a dead worker held comes back soon, and a live one on a busy machine renews it in time.
LEASE = "3"

PLUGIN = """
import asyncio, pathlib, time
from credhook import GiveUp, Handlers, Retry

here = pathlib.Path(__file__).parent
handlers = Handlers("test")

def note(*words):
    with (here / "notes").open("a") as notes:
        print(*words, file=notes, flush=True)

def notes():
    return (here / "notes").read_text().splitlines()
"""

PLAIN = """
@handlers.on("*")
async def first(event, context):
    note("first", event.webhook_id, event.attempt, event.details.status)
"""


class Harness:
    """What a test needs to run workers against the sandbox."""

    def __init__(self, folder: Path, redis_url: str, sandbox: Platform) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.sandbox = sandbox
        self.redis = Redis.from_url(redis_url)
        secrets = {name: value for name, value in sandbox.environment.items() if "WEBHOOK" not in name}
        self.environment = {"REDIS_URL": redis_url, "CREDHOOK_HANDLERS": "plugin", "CREDHOOK_LEASE": LEASE, **secrets}

    def plugin(self, text: str) -> None:
        (self.folder / "plugin.py").write_text(PLUGIN + text)

    def notes(self) -> list[str]:
        return whole_lines(self.folder / "notes")

    def happens(self, webhook_id: str, event_type: str = COMPLETED, **more: object) -> str:
        """Let it happen on the platform, and let the receiver have accepted it."""
        resource_id = self.sandbox.make(event_type, **more)
        accept(self.redis_url, webhook_id, event_type, resource_id)
        return resource_id

    def worker(self, name: str = "worker", *options: str, **settings: str) -> AbstractContextManager[Process]:
        return running(self.folder / f"{name}.log", "worker", *options, environment=self.environment | settings)

    def reaches(self, webhook_id: str, state: str) -> dict[str, str]:
        """The store's record, once it is in that state; as it was then, for it may go on."""
        return until(partial(reached, self.redis, webhook_id, state), what=f"{webhook_id} {state}")
