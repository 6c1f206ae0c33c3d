"""What one logs in with: the token of the settings, or else a code that is good once."""

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pydantic import SecretStr

#: Wrong tries within so many seconds after which none is looked at until the first of them is as old.
_MOST_TRIES: Final = 10
_WITHIN: Final = 60.0


class Login:
    """Judges tries to log in.

    Attributes:
        by_code: whether codes are what is wanted, since there is no token.
    """

    def __init__(
        self,
        token: SecretStr | None,
        *,
        hand_out: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], str] = secrets.token_urlsafe,
    ) -> None:
        """`token`: the settings'. Without one, `hand_out` is given codes, a new one whenever one has been used."""
        self.by_code = token is None
        self._hand_out = hand_out
        self._clock = clock
        self._chance = chance
        self._expected = token or SecretStr("")
        self._wrong: deque[float] = deque(maxlen=_MOST_TRIES)
        self._renew()

    def wait(self) -> float:
        """Seconds until a try is looked at; 0 if it is at once."""
        if len(self._wrong) < _MOST_TRIES:
            return 0.0
        return max(0.0, self._wrong[0] + _WITHIN - self._clock())

    def succeeds(self, given: str) -> bool:
        """Whether this is it. Compared in constant time; a code is used up by it."""
        expected = self._expected.get_secret_value()
        if not hmac.compare_digest(given.encode(errors="replace"), expected.encode(errors="replace")):
            self._wrong.append(self._clock())
            return False
        self._wrong.clear()
        self._renew()
        return True

    def _renew(self) -> None:
        if self.by_code:
            self._expected = SecretStr(self._chance())
            self._hand_out(self._expected.get_secret_value())
