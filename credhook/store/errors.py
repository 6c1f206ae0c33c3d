"""Errors of Redis: the classes that other rooms catch, and advice about each.

A function that asks Redis lets `STORE_ERRORS` through unless it says otherwise.

The advice never quotes Redis, whose messages may hold values. It may name a refused command.
"""

import re
import socket
import ssl
from itertools import chain
from typing import Final

from redis import exceptions
from redis import sentinel as sync_sentinel
from redis.asyncio import sentinel as async_sentinel

from credhook.store import SCHEMA

#: Any error of Redis.
StoreError = exceptions.RedisError
#: The errors of Redis and of the connection to it.
STORE_ERRORS: Final = (StoreError, OSError)

#: The connection broke. The reply may be lost although the command was executed.
ConnectionLost = exceptions.ConnectionError

#: An access control list forbids a command, a key or a channel.
Forbidden = exceptions.NoPermissionError
#: How Redis names a command that its configuration renames, or that its version lacks.
_ABSENT: Final = re.compile("unknown command ['`]([A-Za-z|_-]{1,32})['`]")

#: Redis refuses one command, such as for a wrong type or a missing permission.
StoreRefusal = exceptions.ResponseError


#: redis-py has two classes of that name.
MASTER_NOT_FOUND: Final = (async_sentinel.MasterNotFoundError, sync_sentinel.MasterNotFoundError)

#: Only a Redis in cluster mode says these. The keys of RQ and of our scripts are in different slots.
CLUSTER_ERRORS: Final = (exceptions.AskError, exceptions.ClusterCrossSlotError, exceptions.ClusterDownError)
NO_CLUSTER: Final = "use one without cluster mode, with replicas and Sentinel: RQ's keys do not fit a cluster"

#: The first word of an error about a schema number. The queue and the number that was found follow, see keys.lua.
WRONG_SCHEMA: Final = "WRONGSCHEMA"
_FOUND: Final = re.compile(rf"{WRONG_SCHEMA} (\S+) (\S*)")


def wrong_schema(queue: str, number: bytes | str | None) -> str:
    """Return what to do if the queue's data have the schema number of another version, or "".

    Scripts compare the number themselves, see keys.lua.
    """
    number = number.decode(errors="replace") if isinstance(number, bytes) else number
    if number in {None, str(SCHEMA)}:
        return ""
    if number and re.fullmatch("[0-9]{1,9}", number) is None:
        number = ""
    if number and int(number) < SCHEMA:
        return (
            f"the data of queue {queue} has schema {number} and this version needs {SCHEMA}; "
            "start the version that has written it, or choose another CREDHOOK_QUEUE"
        )
    return (
        f"a newer version has changed the data of queue {queue} to schema {number or '?'} and this one knows {SCHEMA}; "
        "start that version, or choose another CREDHOOK_QUEUE"
    )


class SentinelRefused(exceptions.ConnectionError):
    """The Sentinels refuse our user or password, or want a password."""


def asks_for_password(error: Exception) -> bool:
    """Return True if a Sentinel wanted another password: redis-py lists what each Sentinel said in one text."""
    return exceptions.AuthenticationError.__name__ in str(error)


def failed_sentinels(error: Exception) -> int:
    """Return the number of Sentinels that have not answered, from the same text."""
    return str(error).count(" - ")


#: Words of a server that is no master, or not ready, also within the error of a script.
_ELSEWHERE: Final = ("READONLY", "MASTERDOWN", "LOADING")


def leads_elsewhere(error: Exception) -> bool:
    """Return True if the connection may no longer lead to the master: it failed, or a replica has answered."""
    if isinstance(error, exceptions.ResponseError):
        is_replica = isinstance(error, exceptions.ReadOnlyError | exceptions.MasterDownError)
        return is_replica or any(word in str(error) for word in _ELSEWHERE)
    return isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError)


#: Errors of a Redis that cannot write now, or not for us. The last is how Redis 6.2 reports NOPERM within a script.
#: From Redis 7 on scripts report errors as commands do: redis-py makes the first word a class and drops it.
_UNWELL: Final = (
    "OOM", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM",
    "The user executing the script", WRONG_SCHEMA,
)  # fmt: skip
_UNWELL_CLASSES: Final = (
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.NoPermissionError,
    exceptions.MasterDownError,
    exceptions.AuthenticationError,
)


def is_unwell(reply: object) -> bool:
    """Return True for an error of the connection or of Redis's condition, False if Redis refuses the operation."""
    if isinstance(reply, exceptions.ResponseError) and not isinstance(reply, _UNWELL_CLASSES):
        return any(word in str(reply) for word in _UNWELL)
    return isinstance(reply, STORE_ERRORS)


#: The file with the users of Redis.
USERS: Final = "deploy/redis-users.acl"
#: How Redis 6 and 7 name a refused command, alone or within a script.
_COMMAND: Final = re.compile(r"permissions to run the '([A-Za-z|_-]{1,32})' command")
#: How they report a missing permission within a script. Redis 6 does not name it.
_REFUSALS: Final = ("ermissions to", "The user executing the script can't", "ACL failure in script")

_FULL: Final = "Redis is full and refuses writes: raise its maxmemory"
_REPLICA: Final = "this Redis is a replica: REDIS_URL should name the master, or Sentinel"
_NO_CERTIFICATE: Final = "ask for a client certificate: set CREDHOOK_REDIS_CERTFILE to one that it trusts"

#: The more precise classes first.
_BY_CLASS: Final = (
    # Redis's own words about a client certificate are lost if it closes the connection while we write.
    (
        (ssl.SSLEOFError, ConnectionResetError),
        (
            "Redis ends the connection: it speaks TLS where REDIS_URL says redis, or none where it says rediss; or it "
            f"may be at its maxclients, or {_NO_CERTIFICATE}"
        ),
    ),
    (ssl.SSLError, "check REDIS_URL: rediss:// is for a Redis that speaks TLS, redis:// for one that does not"),
    (socket.gaierror, "the host's name in REDIS_URL is not known here"),
    # With `appendfsync always`, a full disk ends Redis.
    (
        ConnectionRefusedError,
        "nothing listens there: check REDIS_URL, whether Redis runs, and why not: a full disk ends it",
    ),
    (FileNotFoundError, "there is no such socket: check REDIS_URL, and whether Redis runs"),
    (CLUSTER_ERRORS, f"Redis is a cluster: {NO_CLUSTER}"),
    (
        SentinelRefused,
        "the Sentinels want another password: set CREDHOOK_SENTINEL_PASSWORD",
    ),
    (MASTER_NOT_FOUND, "no Sentinel of REDIS_URL that answers knows a running master of that name"),
    (
        (TimeoutError, exceptions.TimeoutError),
        (
            "no answer in time: check REDIS_URL, where rediss:// is for a Redis that speaks TLS, and the way there, "
            "and whether Redis or this process is busy"
        ),
    ),
    (
        exceptions.AuthenticationError,
        "Redis refuses user or password: check REDIS_URL, its encoding, and aclfile: restarts lose users",
    ),
    (exceptions.OutOfMemoryError, _FULL),
    (exceptions.ReadOnlyError, _REPLICA),
    (exceptions.BusyLoadingError, "Redis loads its data: wait"),
)

#: Words anywhere in a reply, since an error within a script stands behind Redis's words about the script.
_BY_WORD: Final = {
    "OOM ": _FULL,
    "READONLY": _REPLICA,
    "MISCONF": "Redis cannot write to its disk: see its log",
    "NOREPLICAS": "Redis has too few replicas to take writes: see its min-replicas-to-write",
    "BUSY": "a script has kept Redis busy for too long: see its log",
    "DB index": "Redis has no database of that number: check REDIS_URL",
    "Too many open files": "this process may open no more files: raise `ulimit -n`, or lower CREDHOOK_CONCURRENCY",
    "max number of clients": "Redis has as many connections as it allows: raise its maxclients",
}
#: How Redis's TLS says that our certificate is missing or refused.
_OUR_CERTIFICATE: Final = re.compile("ALERT.*(CERTIFICATE|UNKNOWN_CA)")
#: What OpenSSL's strict checks miss, in its words. Python 3.13 made them the default.
_STRICT: Final = ("key usage", "key identifier", "basic constraints")


def is_denied(error: BaseException) -> bool:
    """Return True if Redis's user may not do this."""
    return isinstance(error, Forbidden) or any(word in str(error) for word in _REFUSALS)


def hint(error: BaseException) -> str:
    """Return what to do about an error of Redis or of the connection."""
    each: BaseException | None = error
    is_reply = False
    while each is not None:
        if advice := _advice(each):
            return advice
        is_reply = is_reply or isinstance(each, exceptions.ResponseError)
        each = each.__cause__ or each.__context__
    return "see Redis's log" if is_reply else "check REDIS_URL"


def _of_certificate(error: ssl.SSLCertVerificationError) -> str:
    reason = (getattr(error, "verify_message", "") or str(error)).lower()
    if "expired" in reason:
        return "the server's certificate has expired: renew it, and let the server load it"
    if any(word in reason for word in _STRICT):
        return (
            f"Python 3.13 refuses the server's certificate or its authority's ({reason}): issue it again with that "
            "extension"
        )
    if "mismatch" in reason or "not valid for" in reason:
        return (
            "the server's certificate is for another name: let REDIS_URL name the server as its certificate does, "
            "and Sentinels, too (announce-hostnames)"
        )
    return (
        "the server's certificate is not trusted: set SSL_CERT_FILE to a file with its authority's and the public ones"
    )


def _advice(error: BaseException) -> str:
    """Return what to do about this error, or "" if that is unknown."""
    message = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error)
    if is_denied(error):
        return _of_permission(message)
    if absent := _ABSENT.search(message):
        return (
            f"Redis has no command {absent[1].upper()}: remove its rename-command from Redis's configuration, or check "
            "REDIS_URL: redis:// is for Redis, redis+sentinel:// for Sentinels"
        )
    if isinstance(error, ssl.SSLError) and _OUR_CERTIFICATE.search(error.reason or ""):
        return f"Redis seems to {_NO_CERTIFICATE}"
    of_class = (advice for kind, advice in _BY_CLASS if isinstance(error, kind))
    of_word = (advice for word, advice in _BY_WORD.items() if word in message)
    if schema := _FOUND.search(message):
        return wrong_schema(*schema.groups())
    return next(chain(of_class, of_word), "")


def _of_permission(message: str) -> str:
    refused = _COMMAND.search(message)
    if refused:
        command = refused[1].lower()
        return f"REDIS_URL's user may not run {command.upper()}: allow +{command}, as {USERS} does"
    if "channel" in message:
        return f"REDIS_URL's user may not use our channels: allow the patterns with & in {USERS}"
    if "run this command" in message:
        return f"REDIS_URL's user may not run a command of our scripts: ACL LOG names it; allow what {USERS} does"
    return f"REDIS_URL's user may not use our keys: allow the patterns with ~ in {USERS}, or correct CREDHOOK_QUEUE"
