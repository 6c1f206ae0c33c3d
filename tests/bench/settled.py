"""A ledger that has been in use: records of settled events, as the workers leave them."""

import time
from collections.abc import Iterator
from typing import Final

from redis import Redis

from credhook.store import EVENT, HANDLER, State

#: Records per script; it blocks Redis for about as many microseconds, times five.
_BLOCK: Final = 20_000

#: As much as is left, on average, of the default retention.
_EXPIRY: Final = 7 * 86_400 // 2

# ARGV: first number, how many, now in ms, seconds until they expire.
_FILL: Final = f"""
for number = ARGV[1], ARGV[1] + ARGV[2] - 1 do
    local key = string.format('{EVENT}old_%024x', number)
    redis.call('HSET', key,
        'type', 'openid4vc.issuance.completed', 'resource', string.format('iss_old_%020x', number), 'received', ARGV[3],
        'attempts', 1, '{HANDLER}accounts', 'done', 'state', '{State.DONE}', 'settled', ARGV[3])
    redis.call('EXPIRE', key, ARGV[4])
end
"""


#: Records that have been and gone: memory for the events and jobs of a run, and room in the table of keys.
_GONE: Final = 550_000

# ARGV: first number, how many.
_FORGET: Final = f"""
for number = ARGV[1], ARGV[1] + ARGV[2] - 1 do
    redis.call('DEL', string.format('{EVENT}old_%024x', number))
    redis.call('SET', 'gone:' .. number, '')
end
"""

# ARGV: how many.
_LOOK: Final = "for _ = 1, ARGV[1] do redis.call('EXISTS', 'none') end"


def fill(redis: Redis, records: int, *, gone: int = _GONE) -> None:
    """Write that many records, and `gone` more, which go again: in a ledger that is in use, as much expires as comes.

    What a growing Redis does once is so left out of the measurement: to get memory from the system, and to double its
    table of keys, which slows it down for a while whenever a power of two is passed. An empty key stands for each
    record that has gone, or a small ledger's table would shrink, and grow again within the run.
    """
    now, most = int(time.time() * 1_000), records + gone
    for first, count in _blocks(0, most):
        redis.eval(_FILL, 0, str(first), str(count), str(now), str(_EXPIRY))
    for first, count in _blocks(records, most):
        redis.eval(_FORGET, 0, str(first), str(count))
    for _, count in _blocks(0, 2 * most):  # Each look moves one part in so many of the larger table.
        redis.eval(_LOOK, 0, str(count))


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """First number and length of each block of them."""
    for first in range(start, end, _BLOCK):
        yield first, min(_BLOCK, end - first)
