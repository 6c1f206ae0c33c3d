"""Power cuts in the middle of a script's write to the append-only file, on Redis itself.

Redis 6.2 and 7.0 cut the file after the last whole command and leave the transaction open. What it holds is executed
together with the next transaction, after the following restart.
"""

from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest
from redis import Redis

from credhook.store import State
from support.redis.redis_server import MortalRedis
from support.store.accepting import everything
from support.store.breakable_store import BreakableStore
from support.store.script_cases import AFTERWARDS, CASES, doomed, nothing
from support.store.store_rules import disagreements
from support.worker.claiming import COMPLETED

#: Of the places where a file can be cut, one in so many is tried.
EVERY = 3
#: A key that had no expiry yet.
LEFTOVER = b"*3\r\n$3\r\nSET\r\n$28\r\ncredhook:credhook:unfinished\r\n$1\r\nx\r\n"
SETTLED = {State.DONE, State.DEAD, State.QUARANTINED}


def commands(file: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield where each command of an append-only file begins, and its name."""
    reader = hiredis.Reader()
    reader.feed(file[start:])
    while (command := reader.gets()) is not False:
        yield start, command[0].upper()
        start += len(hiredis.pack_command(tuple(command)))
    assert start == len(file)


def cuts(file: bytes, start: int) -> Iterator[int]:
    """Yield the places in the middle of a command of a transaction."""
    is_inside = False
    for where, name in commands(file, start):
        if is_inside:
            yield where + 5
        is_inside = name == b"MULTI" or (is_inside and name != b"EXEC")


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", CASES)
async def test_cut_file_loses_nothing_at_the_next_two_starts(name: str, tmp_path: Path) -> None:
    _, prepare, run = CASES[name]
    repeat, expected = AFTERWARDS.get(name, (nothing, {"e1"}))
    with MortalRedis(tmp_path) as server:
        file = server.file
        before = BreakableStore(Redis.from_url(server.url))
        await prepare(before)
        start = file.stat().st_size
        await run(before)
        whole, handled = file.read_bytes(), set(before.handled)
        for cut in list(cuts(whole, start))[::EVERY]:
            server.kill()
            file.write_bytes(whole[:cut])
            for _ in range(2):
                server.start()
                store = BreakableStore(Redis.from_url(server.url))
                store.handled |= handled
                await repeat(store)
                await store.recover()
                assert disagreements(store.redis) == [], cut
                found = {key.decode().split(":event:")[1] for key in store.redis.scan_iter("*:event:*")}
                assert expected <= found, cut
                for one in found:
                    state = store.redis.hget(store.store.keys.event + one, "state").decode()
                    assert state in SETTLED, cut
                handled = store.handled
                store.redis.close()
                server.kill()
            server.start()


async def test_redis_drops_a_script_that_was_cut(tmp_path: Path) -> None:
    with MortalRedis(tmp_path) as server:
        store = BreakableStore(Redis.from_url(server.url))
        store.deliver(("first", COMPLETED, "r9"))
        start = server.file.stat().st_size
        await doomed(store)
        kept = sorted(everything(store.redis).splitlines())
        server.kill()
        whole = server.file.read_bytes()
        server.file.write_bytes(whole[:start] + LEFTOVER + whole[start:])
        server.start()
        assert sorted(everything(Redis.from_url(server.url)).splitlines()) == kept
