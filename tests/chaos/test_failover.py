"""What a failover costs: Sentinel replaces the master while a sender repeats, in each durability profile."""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis
from rq.utils import as_text

from credhook.sandbox.local.environment import free_port, start_server
from support.process.serving import receiver
from support.receiver.repeating_sender import SENDERS, deliver_all
from support.redis.redis_addresses import sentinel
from support.store.stores import job_id
from support.waiting import until

#: Deliveries a second.
RATE = 300
#: Of a store whose replicas are its only memory.
WITHOUT_FILE = ("--appendonly", "no")


class ReplicatedRedis:
    """Three servers and a Sentinel. The master can be killed or stopped, and comes back as a replica."""

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self._folder, self._options = folder, options
        self._ports = [free_port() for _ in range(3)]
        self._servers: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(lambda: [self._end(server) for server in self._servers.values()])
            for port in self._ports:
                (self._folder / str(port)).mkdir()
                self._start(port, master=self._ports[0])
            patience = ("down-after-milliseconds main 1500", "failover-timeout main 3000")
            self._sentinel_port = stack.enter_context(sentinel(self._folder, self._ports[0], *patience))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self._sentinel_port}/main"

    @property
    def master(self) -> int:
        """The port of the master, as Sentinel names it."""
        said: Any = self._asked("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main", port=self._sentinel_port)
        return int(said[1])

    def fails(self, how: str) -> None:
        """Kill or stop the master; return once another one has replaced it."""
        until(self._is_whole, what="the replicas")  # A master that was slow for a moment may be replaced just now.
        port = self.master
        server = self._servers[port]
        server.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        until(lambda: self.master != port, what="the failover")
        if how == "kill":
            server.wait()
            self._start(port, master=self.master)
        else:
            server.send_signal(signal.SIGCONT)

    def _start(self, port: int, *, master: int) -> None:
        following = () if port == master else ("--replicaof", "127.0.0.1", str(master))
        options = (*self._options, *following, "--repl-diskless-sync-delay", "0")
        self._servers[port] = start_server(self._folder / str(port), port, options)

    def _is_whole(self) -> bool:
        """Return True if the master has two replicas, and Sentinel knows them.

        Until Sentinel ends a failover, it lists those of the old master: the new one is among them. If that one fails,
        such a failover never ends.
        """
        master = self.master
        said: Any = self._asked("INFO", "replication", port=master)
        known: Any = self._asked("SENTINEL", "REPLICAS", "main", port=self._sentinel_port)
        linked = [dict(zip(one[::2], one[1::2], strict=True)) for one in known]
        states = {(int(one["port"]), one["master-link-status"]) for one in linked}
        return str(said).count("state=online") == 2 and states == {(one, "ok") for one in self._ports if one != master}

    def _asked(self, *command: str, port: int) -> object:
        with Redis(port=port, decode_responses=True, socket_timeout=5, protocol=2) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    @staticmethod
    def _end(server: "subprocess.Popen[bytes]") -> None:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("durability", "how", "times"),
    [
        ("replicated:2", "kill", 1),
        *(
            pytest.param(durability, how, 10, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)])
            for durability in ("replicated", "replicated:2", "strict")
            for how in ("kill", "stop")
        ),
    ],
)
async def test_a_failover_under_load(tmp_path: Path, durability: str, how: str, times: int) -> None:
    #: webhook-id → when it was first sent. Each sender waits for 202 before it begins the next delivery.
    begun: dict[str, float] = {}
    ends = False

    def supply() -> Iterator[str]:
        while not ends:
            webhook_id = f"msg_{len(begun):06}"
            begun[webhook_id] = time.monotonic()
            yield webhook_id

    with ReplicatedRedis(tmp_path, () if durability == "strict" else WITHOUT_FILE) as redis:
        with receiver(tmp_path, redis.url, CREDHOOK_DURABILITY=durability) as process:
            sending = asyncio.create_task(deliver_all(lambda: process.url, supply(), pause=SENDERS / RATE))
            for _ in range(times):
                await asyncio.sleep(1.0)
                await asyncio.to_thread(redis.fails, how)
            ends = True
            await sending
            assert "Traceback" not in process.text
        with Redis(port=redis.master) as client:
            missing = [one for one in begun if not client.exists("credhook:credhook:event:" + one)]
            jobs = [as_text(job) for job in client.lrange("rq:queue:credhook", 0, -1)]
    gaps = sorted((after - before for before, after in pairwise(begun.values())), reverse=True)
    print(
        f"\n{durability}, {times} times {how} of the master: {len(begun)} accepted, {len(missing)} lost, "
        f"{len(jobs) - len(set(jobs))} doubled; seconds without 202: {', '.join(f'{gap:.1f}' for gap in gaps[:times])}"
    )
    assert len(jobs) == len(set(jobs))
    # With fewer than all replicas, Sentinel may choose one that lags. Or a master that stalls, is replaced and goes on
    # still has the other replica, and acknowledges what is then discarded.
    if durability == "replicated:2":
        assert missing == []
        assert {job_id(one) for one in begun} <= set(jobs)
