"""A process that asks the platform once, configured by its environment.

`python client_process.py` prints a line of JSON: the presentation's id, or the error and its hint.
"""

import json
import sys

import uvloop

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, hint
from credhook.worker.settings import PlatformSettings


async def main() -> None:
    async with AsyncApi.from_settings(PlatformSettings()) as api:
        try:
            said = {"id": (await api.presentations.get("p")).id}
        except ApiError as error:
            said = {"operation": error.operation, "cause": error.cause, "error": str(error), "hint": hint(error)}
        sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    uvloop.run(main())
