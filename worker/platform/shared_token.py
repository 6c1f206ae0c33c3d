"""One access token for all worker processes of a fleet, shared through Redis, and whose turn it is to fetch the next.

    credhook:token:<digest>            the token, sealed; it is gone when it is time to renew it
    credhook:token:<digest>:granted    when that was granted, in ms of Redis's clock
    credhook:token:<digest>:lock       of whoever is fetching one
    credhook:token:<digest>:refused    sealed: how the token endpoint has refused one; nobody asks again while it lives

The digest is of token URL, client id and what the token is asked for, the cipher made from the client secret: who has
another secret has another token. Times are Redis's own (PTTL), never those of a host's clock.

Redis saves requests here, and no more than that. Without it, or when another process takes too long, a process fetches
a token by itself and keeps it in memory.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from secrets import token_bytes
from typing import Final, Literal, Self, TypeVar

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from credhook.store import lua
from credhook.store.hints import hint
from credhook.worker import metrics
from credhook.worker.api.calls.errors import ApiError
from credhook.worker.api.oauth.tokens import LONGEST_LIFETIME, Token, TokenCache
from credhook.worker.platform.cipher import Cipher, NotOurs
from credhook.worker.platform.token_key import granted_name, name_from
from credhook.worker.platform.token_refusal import LONGEST_QUIET, noted, quiet_for, refusal_from
from credhook.worker.platform.unreadable import ANOTHER_TYPE, Unreadable, is_of_another_type
from credhook.worker.settings import WorkerSettings

log = structlog.get_logger("credhook.worker")

T = TypeVar("T")

#: Seconds for which a Redis that has not answered is left alone.
LEFT_ALONE: Final = 30.0

#: Seconds by which a lock outlives the time-out of the request that it is for.
_LOCK_MARGIN: Final = 0.5
#: Seconds that a lock lasts at most, however long the time-out: a process that was killed holds the fleet up for so
#: long. While the token endpoint is slower than this, one more request is made every so often, not one per process.
LONGEST_LOCK: Final = 5.0
#: Locks that a process waits for before it goes on by itself.
_LOCKS_WAITED_FOR: Final = 2
#: Seconds from one look at a fetch elsewhere to the next: drawn anew each time, so that not all look at once.
_PAUSES: Final = (0.05, 0.15)

_RELEASE_LOCK: Final = lua.load("release_lock.lua")
_TAKE_OVER_LOCK: Final = lua.load("take_over_lock.lua")

#: Another process is fetching a token.
ELSEWHERE: Final = "elsewhere"


class SharedTokens:
    """The fleet's token, and this process's copy of it.

    Args:
        redis: Where it is shared. Not closed by us.
        cipher: Made from the client secret.
        name: Of the key that holds it, see `key_name`.
        timeout: Seconds that a token request may take.
        copy: This process's copy of the token; by default a new one.
        clock: Monotonic seconds, the same as the credentials'.
        chance: Draws pauses, from 0 to 1.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        redis: Redis,
        cipher: Cipher,
        name: str,
        *,
        timeout: float,
        copy: TokenCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._redis = redis
        self._delete = redis.register_script(_RELEASE_LOCK)
        self._take_over = redis.register_script(_TAKE_OVER_LOCK)
        self._cipher = cipher
        self._name, self._lock_name, self._refused_name = name, f"{name}:lock", f"{name}:refused"
        self._lock_seconds = min(timeout + _LOCK_MARGIN, LONGEST_LOCK)
        self._clock, self._chance, self._sleep = clock, chance, sleep
        self._copy = TokenCache() if copy is None else copy
        #: The last token that the platform has refused: should Redis still have it, it is none.
        self._invalid: Token | None = None
        #: The last token that our secret did not open, so that each is logged once.
        self._foreign: bytes | None = None
        self._unreadable = Unreadable()
        #: What our lock says, while we may hold it.
        self._lock: bytes | None = None
        self._alone_until = -1.0
        #: Whether it is this process that asks for a token just now.
        self._asks = False

    @classmethod
    def from_settings(cls, redis: Redis, settings: WorkerSettings, copy: TokenCache | None = None) -> Self:
        """Share the token of the client that the settings name."""
        cipher = Cipher(settings.client_secret, "token")
        return cls(redis, cipher, name_from(settings), timeout=settings.fetch_timeout, copy=copy)

    def get(self) -> Token | None:
        """Return this process's copy."""
        return self._copy.get()

    async def acquire(self) -> Token | None:
        """Return the fleet's token, or None: it is ours to fetch one. See `Tokens`."""
        patience = self._clock() + _LOCKS_WAITED_FOR * self._lock_seconds
        while (found := await self._unless_alone(self._find_or_lock)) == ELSEWHERE:
            if self._clock() > patience:
                break
            shortest, longest = _PAUSES
            await self._sleep(shortest + (longest - shortest) * self._chance())
        if isinstance(found, Token):
            await self._copy.replace(found)
            return found
        self._asks = True
        return None

    async def release(self, outcome: Token | ApiError | None) -> None:
        """Unlock, and let everyone know of a refusal. No answer may be this host's own trouble: the next one tries."""
        asked, self._asks = self._asks, False
        if asked and isinstance(outcome, ApiError):
            metrics.TOKEN_FETCHES.add("unanswered" if outcome.status is None else "refused")
        lock, self._lock = self._lock, None
        if lock is None:
            return
        if isinstance(outcome, ApiError) and outcome.status is not None:
            note, seconds = self._cipher.encrypt(noted(outcome), self._refused_name), quiet_for(outcome)
            await self._unless_alone(lambda: self._redis.set(self._refused_name, note, px=_ms(seconds)))
        await self._unless_alone(lambda: self._delete(keys=[self._lock_name], args=[lock]))

    async def replace(self, token: Token) -> None:
        """Keep a token that was just granted, for all."""
        metrics.TOKEN_FETCHES.add("granted")
        await self._copy.replace(token)
        sealed, left = self._cipher.encrypt(token.value.encode(), self._name), token.renew_at - self._clock()
        if left > 0:
            await self._unless_alone(lambda: self._share(sealed, _ms(left)))

    async def invalidate(self, token: Token) -> None:
        """Forget a token that the platform has refused, for all, unless there is a newer one."""
        self._invalid = token
        if self._copy.get() == token:  # Otherwise another task has seen to it.
            await self._copy.invalidate(token)
            await self._unless_alone(lambda: self._invalidate(token))

    async def _find_or_lock(self) -> Token | Literal["elsewhere"] | None:
        """Return the fleet's token, or that another process fetches one, or None: we have the lock.

        Raises:
            ApiError: Another process was refused one just now.
        """
        found = await self._find()
        if found is not None:
            return found
        # Known before it is asked for: whoever is cancelled meanwhile may have it.
        lock = self._lock = token_bytes(16)
        if not await self._take_lock(lock):
            self._lock = None
            return ELSEWHERE
        try:
            return await self._find()  # It may have come between our look and our lock.
        except ApiError:
            await self.release(None)  # It is another's to tell.
            raise

    async def _take_lock(self, lock: bytes) -> bool:
        """Lock, if nobody fetches a token who could ever be done with it."""
        milliseconds = _ms(self._lock_seconds)
        if await self._redis.set(self._lock_name, lock, nx=True, px=milliseconds):
            self._unreadable.mended("lock")
            return True
        taken, unreadable = await self._take_over(keys=[self._lock_name], args=[lock, milliseconds, _ms(LONGEST_LOCK)])
        if unreadable:
            self._unreadable.found("lock", "it is none of ours, or would never end", key=self._lock_name)
        return bool(taken)

    async def _find(self) -> Token | None:
        """Return the fleet's token.

        Raises:
            ApiError: There is none, and another process was refused one just now.
        """
        looked_at = self._clock()
        async with self._redis.pipeline() as look:
            for name in (self._name, self._refused_name):
                look.get(name)
                look.pttl(name)
            token, left, note, quiet = await look.execute(raise_on_error=False)
        value = self._token_of(token)
        refused = self._invalid is not None and value == self._invalid.value.encode()
        if value is not None and not refused and left > 0:  # Without an end it is not as we wrote it.
            return Token(value.decode(), renew_at=looked_at + min(left / 1000, LONGEST_LIFETIME))
        refusal = self._refusal_of(note, quiet)
        if refusal is not None:
            raise refusal
        return None

    def _token_of(self, reply: object) -> bytes | None:
        """The token in Redis's reply, if it is one; what is none is said once."""
        value = self._opened(reply, self._name, "token")
        if value is not None:
            self._unreadable.mended("token")
        if isinstance(reply, bytes) and value is None and reply != self._foreign:
            self._foreign = reply
            metrics.UNREADABLE.add("token")
            log.warning("token_not_ours", key=self._name, hint="do all workers have the same CREDHOOK_CLIENT_SECRET?")
        return value

    def _refusal_of(self, reply: object, left: int) -> ApiError | None:
        """The refusal in Redis's reply, if there is one, which ends when our refusals end."""
        note = self._opened(reply, self._refused_name, "refusal")
        if note is None or not 0 < left <= _ms(LONGEST_QUIET):
            return None
        try:
            refusal = refusal_from(note, left / 1000)
        except (ValueError, LookupError, TypeError):  # Of another version of ours, which alone can have sealed it.
            self._unreadable.found("refusal", "it has not the form of a refusal", key=self._refused_name)
            return None
        self._unreadable.mended("refusal")
        return refusal

    def _opened(self, reply: object, name: str, what: str) -> bytes | None:
        """What was sealed; None if there is nothing of ours.

        Raises:
            RedisError: Redis has not said.
        """
        if isinstance(reply, Exception):
            if not is_of_another_type(reply):
                raise reply
            self._unreadable.found(what, ANOTHER_TYPE, key=name)
            return None
        try:
            return self._cipher.decrypt(reply, name) if isinstance(reply, bytes) else None
        except NotOurs:
            return None

    async def _share(self, sealed: bytes, left: int) -> None:
        seconds, microseconds = await self._redis.time()
        async with self._redis.pipeline() as write:
            write.set(self._name, sealed, px=left)
            write.set(granted_name(self._name), seconds * 1_000 + microseconds // 1_000, px=left)
            await write.execute()

    async def _invalidate(self, token: Token) -> None:
        async with self._redis.pipeline() as look:
            look.get(self._name)
            (sealed,) = await look.execute(raise_on_error=False)
        if isinstance(sealed, bytes) and self._opened(sealed, self._name, "token") == token.value.encode():
            await self._delete(keys=[self._name], args=[sealed])

    async def _unless_alone(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return what Redis says; None if it cannot be asked, or could not a moment ago."""
        if self._clock() < self._alone_until:
            return None
        try:
            return await ask()
        except (RedisError, OSError) as error:
            self._alone_until = self._clock() + LEFT_ALONE
            log.warning("token_not_shared", error=type(error).__name__, seconds=LEFT_ALONE, hint=hint(error))
            return None


def _ms(seconds: float) -> int:
    """Milliseconds, as Redis takes them: at least one."""
    return max(1, int(seconds * 1000))
