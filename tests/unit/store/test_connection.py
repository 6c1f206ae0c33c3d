import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout
from redis.sentinel import MasterNotFoundError

from credhook.store.address import RedisAddress
from credhook.store.connection import open_redis, open_redis_sync
from credhook.store.errors import hint, leads_elsewhere

GOOD = {
    "redis://127.0.0.1": RedisAddress((("127.0.0.1", 6379),)),
    "redis://127.0.0.1:6380/3": RedisAddress((("127.0.0.1", 6380),), db=3),
    "rediss://us%40er:p%2Fw%40@h:1": RedisAddress((("h", 1),), tls=True, username="us@er", password="p/w@"),
    "redis://:pw@[::1]:6380/0": RedisAddress((("::1", 6380),), password="pw"),
    "unix:///run/redis.sock": RedisAddress((), path="/run/redis.sock"),
    "unix://me:pw@/run/my%20redis": RedisAddress((), path="/run/my redis", username="me", password="pw"),
    "redis+sentinel://a,b:26380/main": RedisAddress((("a", 26379), ("b", 26380)), service="main"),
    "rediss+sentinel://:pw@a:1/main/2": RedisAddress((("a", 1),), service="main", db=2, tls=True, password="pw"),
}

NO_TLS = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
NO_TLS.reason = "WRONG_VERSION_NUMBER"
ENDED = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
ENDED.reason = "UNEXPECTED_EOF_WHILE_READING"


@pytest.mark.parametrize(("url", "address"), GOOD.items(), ids=str)
def test_each_form_is_read(url: str, address: RedisAddress) -> None:
    assert RedisAddress.parse(url) == address
    assert (address.password or "hidden") not in repr(address)
    assert RedisAddress.parse(str(address)) == replace(address, username=None, password=None)
    open_redis(url)
    open_redis_sync(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:6379", "redis://", "http://h", "redis://h:port", "redis://h/x", "redis://a,b", "redis://[::1"),
        *("redis://:s3cr/et@h", "redis://h?decode_responses=true", "redis+cluster://a/main", "redis+sentinel://h"),
        *("redis+sentinel://h/main/x", "unix://", "unix://run/redis.sock", "unix+sentinel:///run/s", "redis://me#pw@h"),
        "redis+sentinel://:s3cr@a,:s3cr@b/main",  # One password stands for all Sentinels.
    ],
)
def test_any_other_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="should be redis://") as refusal:
        RedisAddress.parse(url)
    assert "s3cr" not in str(refusal.value)
    assert refusal.value.__suppress_context__


@pytest.mark.parametrize("connect", [open_redis, open_redis_sync])
def test_sentinels_and_masters_get_our_certificate_and_our_patience(connect: Callable[..., Any]) -> None:
    address = replace(RedisAddress.parse("rediss+sentinel://a/main"), certfile=Path("own.pem"), keyfile=Path("key.pem"))
    pool = connect(address, socket_timeout=0.5).connection_pool
    for kwargs in (pool.connection_kwargs, pool.sentinel_manager.sentinels[0].connection_pool.connection_kwargs):
        assert (kwargs["ssl_certfile"], kwargs["ssl_keyfile"]) == (Path("own.pem"), Path("key.pem"))
        assert kwargs["socket_timeout"] == 0.5
        assert kwargs["protocol"] == 2  # A server may have no HELLO.


def test_client_repeats_no_command_that_has_failed() -> None:
    sentinel: Any = open_redis("redis+sentinel://a/main").connection_pool
    for pool in (
        open_redis("redis://h").connection_pool,
        sentinel,
        sentinel.sentinel_manager.sentinels[0].connection_pool,
    ):
        assert pool.connection_kwargs["retry"].get_retries() == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NO_TLS, "rediss:// is for a Redis that speaks TLS"),
        (ssl.SSLCertVerificationError(1, "certificate has expired"), "has expired: renew it"),
        (ssl.SSLCertVerificationError(1, "Hostname mismatch"), "for another name"),
        (ssl.SSLCertVerificationError(1, "certificate is not valid for '127.0.0.1'"), "for another name"),
        (ssl.SSLCertVerificationError(1, "CA cert does not include key usage extension"), "usage extension): issue it"),
        (ssl.SSLCertVerificationError(1, "Missing Authority Key Identifier"), "authority key identifier): issue it"),
        (ssl.SSLCertVerificationError(1, "Basic Constraints of CA cert not critical"), "not critical): issue it again"),
        (ENDED, "maxclients"),
        (ConnectionResetError(104, "Connection reset by peer"), "speaks TLS where REDIS_URL says redis"),
        (TimeoutError(), "no answer in time"),
        (RedisTimeout(), "no answer in time"),
        (socket.gaierror(-2, "Name or service not known"), "the host's name in REDIS_URL is not known here"),
        (FileNotFoundError(), "there is no such socket: check REDIS_URL, and whether Redis runs"),
        (OSError(24, "Too many open files"), "raise `ulimit -n`, or lower CREDHOOK_CONCURRENCY"),
        (MasterNotFoundError("No master found for 'main'"), "no Sentinel of REDIS_URL"),
        (BusyLoadingError("Redis is loading the dataset in memory"), "Redis loads its data: wait"),
        (ReadOnlyError("You can't write against a read only replica."), "is a replica"),
        (
            ResponseError("MISCONF Redis is configured to save RDB snapshots"),
            "Redis cannot write to its disk: see its log",
        ),
        (
            ResponseError("BUSY Redis is busy running a script."),
            "a script has kept Redis busy for too long: see its log",
        ),
        (ResponseError("max number of clients reached"), "as many connections as it allows: raise its maxclients"),
        (ResponseError("DB index is out of range"), "Redis has no database of that number: check REDIS_URL"),
        (ClusterDownError("CLUSTERDOWN Hash slot not served"), "Redis is a cluster: "),
        (AuthenticationError("invalid username-password pair"), "refuses user or password: check REDIS_URL, its"),
        (ConnectionRefusedError(111, "Connection refused"), "check REDIS_URL, whether Redis runs, and why not: a full"),
        # As Redis 6 and 7 say it.
        (NoPermissionError("this user has no permissions to access one of the channels used as arguments"), "channels"),
        (NoPermissionError("No permissions to access a channel"), "our channels: allow the patterns with & in"),
        (NoPermissionError("No permissions to access a key"), "our keys: allow the patterns with ~ in"),
        (
            NoPermissionError("User me has no permissions to run the 'config|get' command"),
            "CONFIG|GET: allow +config|get, as deploy/redis-users.acl does",
        ),
        (ResponseError("unknown command 'COPY', with args beginning with: 'a'"), "no command COPY: remove"),
        (ResponseError("unknown command 'GET', with args beginning with: 'a'"), "redis+sentinel:// for Sentinels"),
        # Within a script, as Redis 6 says it.
        (ResponseError("Error running script: -READONLY You can't write against a replica."), "is a replica"),
        (ResponseError("Error running script: -OOM command not allowed"), "raise its maxmemory"),
        (
            ResponseError("Error running script: -NOREPLICAS Not enough good replicas."),
            "too few replicas to take writes: see its min-replicas",
        ),
        (ResponseError("The user executing the script can't run this command or subcommand"), "ACL LOG names it"),
        (ResponseError("WRONGSCHEMA q 0"), "the data of queue q has schema 0 and this version needs 2"),
        (ResponseError("WRONGSCHEMA q 3"), "a newer version has changed the data of queue q to schema 3"),
        (ResponseError("WRONGSCHEMA q x"), "to schema ? and this one knows 2"),
        (ResponseError("ERR unheard of"), "see Redis's log"),
        (RedisConnectionError("closed"), "check REDIS_URL"),
    ],
)
def test_each_error_of_redis_has_its_own_advice(error: Exception, said: str) -> None:
    wrapped = RedisConnectionError()
    wrapped.__cause__ = error
    assert said in hint(error)
    assert said in hint(wrapped)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("Error running script: -READONLY You can't write against a replica."), True),
        (BusyLoadingError("Redis is loading the dataset in memory"), True),
        (RedisConnectionError("closed"), True),
        (RedisTimeout("Timeout reading from socket"), True),
        (TimeoutError(), True),
        (ResponseError("Error running script: -OOM command not allowed"), False),
        (NoPermissionError("No permissions to access a key"), False),
    ],
)
def test_error_tells_if_the_connection_may_lead_elsewhere(error: Exception, expected: bool) -> None:
    assert leads_elsewhere(error) is expected
