"""The limit: the same requests, their ids read from a list, by as many tasks of one event loop; no queue, no Redis."""

import asyncio
import os
import signal

from bench.programs.fetching import event_ids, fetch_async


async def main() -> None:
    ids = iter(event_ids())

    async def work() -> None:
        for event_id in ids:
            await fetch_async(event_id)

    await asyncio.gather(*(work() for _ in range(int(os.environ["SLOTS"]))))


if __name__ == "__main__":
    asyncio.run(main())
    signal.pause()  # It is measured before it goes.
