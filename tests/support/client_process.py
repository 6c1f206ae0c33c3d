"""A process that asks the platform once in each of the client's modes, configured by its environment.

`python client_process.py` prints a line of JSON for each mode: the presentation's id, or the error and its hint.
"""

import asyncio
import json
import sys

import uvloop

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError, hint
from credhook.worker.settings import PlatformSettings


async def main() -> None:
    async with AsyncApi.from_settings(PlatformSettings()) as api:
        in_thread = SyncApi(api).presentations
        for asked in (api.presentations.get("p"), asyncio.to_thread(in_thread.get, "p")):
            try:
                said = {"id": (await asked).id}
            except ApiError as error:
                said = {"operation": error.operation, "cause": error.cause, "error": str(error), "hint": hint(error)}
            sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
