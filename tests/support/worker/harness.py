"""A harness that runs workers with a plugin of the test's own against the sandbox."""

from functools import partial
from pathlib import Path

from redis import Redis

from support.process.growing_files import whole_lines
from support.process.serving import Platform, Process, running
from support.store.accepting import accept, reached
from support.waiting import until

COMPLETED = "openid4vc.issuance.completed"
DATA = "openid4vc.verification.data"

#: Seconds: a dead worker's events come back soon, and a live worker on a busy machine renews in time.
LEASE = "3"

PLUGIN = """
import asyncio, pathlib, time
from credhook import GiveUp, Handlers, Retry

here = pathlib.Path(__file__).parent
handlers = Handlers("test")

def note(*words):
    with (here / "notes").open("a") as notes:
        print(*words, file=notes, flush=True)
"""

PLAIN = """
@handlers.on("*")
async def first(event, context):
    note("first", event.webhook_id, event.attempt, event.details.status)
"""

#: Runs until the test says `go`.
HELD = """
@handlers.on("*")
async def first(event, context):
    note("begun", event.webhook_id)
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("first", event.webhook_id)
"""


class Workers:
    """A folder, a Redis and a platform, and workers that use them."""

    header = PLUGIN

    def __init__(self, folder: Path, redis_url: str, platform: dict[str, str]) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.redis = Redis.from_url(redis_url)
        self.environment = {"REDIS_URL": redis_url, "CREDHOOK_HANDLERS": "plugin", "CREDHOOK_LEASE": LEASE, **platform}

    def plugin(self, text: str, name: str = "plugin") -> None:
        (self.folder / f"{name}.py").write_text(self.header + text)

    def worker(self, name: str = "worker", *options: str, **settings: str) -> Process:
        """Start a worker. Its log goes on in the file of that name."""
        return running(self.folder / f"{name}.log", "worker", *options, environment=self.environment | settings)

    def reaches(self, webhook_id: str, state: str, within: float = 60.0) -> dict[str, str]:
        """Return the store's record once the event is in that state, as it was then."""
        return until(partial(reached, self.redis, webhook_id, state), what=f"{webhook_id} {state}", within=within)


class Harness(Workers):
    """Workers beside the sandbox."""

    def __init__(self, folder: Path, redis_url: str, sandbox: Platform) -> None:
        secrets = {name: value for name, value in sandbox.environment.items() if "WEBHOOK" not in name}
        super().__init__(folder, redis_url, secrets)
        self.sandbox = sandbox

    def notes(self) -> list[str]:
        return whole_lines(self.folder / "notes")

    def happens(self, webhook_id: str, event_type: str = COMPLETED, **more: object) -> str:
        """Let the event happen on the platform, and accept it as the receiver does."""
        resource_id = self.sandbox.make(event_type, **more)
        accept(self.redis_url, webhook_id, event_type, resource_id)
        return resource_id
