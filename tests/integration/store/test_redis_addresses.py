"""Every form of `REDIS_URL`, with a real server behind each: the receiver stores, and stores again when cut off."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from redis import Redis

from credhook.sandbox.local.environment import local_redis
from support.process.serving import receiver
from support.receiver.floods import deliver
from support.redis.redis_addresses import (
    Reached,
    over_a_unix_socket,
    over_mutual_tls,
    over_tcp,
    over_tls,
    through_sentinel,
)
from support.waiting import until


@pytest.mark.parametrize("reach", [over_tcp, over_a_unix_socket, over_tls, over_mutual_tls, through_sentinel])
def test_a_delivery_is_stored_and_stored_again_when_the_connection_was_cut(
    reach: Callable[[Path, str], AbstractContextManager[Reached]], tmp_path: Path
) -> None:
    options = ("--unixsocket", str(tmp_path / "redis.sock"))
    with (
        local_redis(tmp_path, options=options) as url,
        reach(tmp_path, url) as (address, environment),
        receiver(tmp_path, address, options=(), **environment) as process,
        Redis.from_url(url.removesuffix("/0"), db=3 if reach is over_tcp else 0) as redis,
    ):
        until(lambda: deliver(process.port, "m1") == 202, what="a delivery that is stored")
        redis.client_kill_filter(_type="normal", skipme=True)
        assert deliver(process.port, "m2") == 202
        assert {key[-3:] for key in redis.scan_iter("credhook:credhook:event:*")} == {b":m1", b":m2"}
