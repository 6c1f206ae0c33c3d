"""A ledger that has been in use: records of settled events, as the workers leave them."""

import time
from typing import Final

from redis import Redis

from receiver.ledger import EVENT, HANDLER, State

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


def fill(redis: Redis, records: int) -> None:
    """Write that many records."""
    now = int(time.time() * 1_000)
    for first in range(0, records, _BLOCK):
        redis.eval(_FILL, 0, str(first), str(min(_BLOCK, records - first)), str(now), str(_EXPIRY))
