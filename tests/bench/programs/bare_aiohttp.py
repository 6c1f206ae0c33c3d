"""The limit of Python: the same requests, by as many tasks of one event loop, with aiohttp; no queue, no Redis."""

import asyncio
import os
import signal

import aiohttp
import uvloop

EVENTS = int(os.environ["EVENTS"])
SLOTS = int(os.environ["SLOTS"])


async def main() -> None:
    numbers = iter(range(EVENTS))
    async with aiohttp.ClientSession(
        os.environ["API_URL"],
        connector=aiohttp.TCPConnector(limit=SLOTS),
        headers={"Authorization": "Bearer token"},
        raise_for_status=True,
        timeout=aiohttp.ClientTimeout(total=10),
    ) as session:

        async def work() -> None:
            for number in numbers:
                async with session.get(f"/me-creds/api/credentials/iss_{number:024x}") as answer:
                    await answer.json()

        await asyncio.gather(*(work() for _ in range(SLOTS)))


if __name__ == "__main__":
    uvloop.run(main())
    signal.pause()  # It is measured before it goes.
