"""The other databases of the same Redis: a REDIS_URL that ends in another number parts processes that never notice."""

from collections.abc import Iterator
from typing import Any, Final

from redis import Redis
from redis.exceptions import ResponseError

#: That are looked into; a Redis has sixteen, unless it is told otherwise.
_MOST: Final = 16


def other_databases(redis: Redis) -> Iterator[tuple[int, Redis]]:
    """The numbers of those that hold anything, and a client for each that is good until the next is asked for.

    There are none where an access control list keeps them from us.

    Raises:
        RedisError, OSError: Redis failed.
    """
    own = int(redis.get_connection_kwargs().get("db") or 0)
    keyspace: Any = redis.info("keyspace")
    numbers = sorted(int(name.removeprefix("db")) for name in keyspace)
    for number in [one for one in numbers if one != own][:_MOST]:
        with redis.client() as other:  # type: ignore[no-untyped-call]  # redis-py's gap
            try:
                other.select(number)
            except ResponseError:
                return
            try:
                yield number, other
            finally:
                # Its pool knows it as a connection to our own database, which it is once it has been made anew.
                if other.connection:
                    other.connection.disconnect()
