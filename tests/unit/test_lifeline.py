"""The end of the receiver's parent."""

import asyncio
import os

import uvicorn
from waiting import until_async

from credhook.receiver.command import end_with_parent


async def test_the_server_ends_with_its_parent_and_the_pipe_is_not_watched_after_that() -> None:
    lifeline, held_by_parent = os.pipe()
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    try:
        end_with_parent(lifeline, server)
        await asyncio.sleep(0)
        assert not server.should_exit
        os.close(held_by_parent)
        await until_async(lambda: server.should_exit)
        # Else its callback would run in each turn of the loop while requests drain.
        assert not asyncio.get_running_loop().remove_reader(lifeline)
    finally:
        os.close(lifeline)
