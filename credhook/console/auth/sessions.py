"""Sessions: a signed cookie says whose, and until when. They end with the process, which alone has the key."""

import hmac
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NamedTuple, cast

from starlette.requests import Request

#: Characters of a cookie beyond which it is none of ours.
_LONGEST: Final = 1_024


class Session(NamedTuple):
    """Somebody who has logged in.

    Attributes:
        id: random.
        who: the name that was given, for the log and for the stories of events.
        until: when it ends, in seconds since the epoch.
        form_token: what each form of the session's pages carries, and no page of another site can know.
    """

    id: str
    who: str
    until: float
    form_token: str


class Sessions:
    """Begins, recognises and ends them."""

    def __init__(
        self,
        *,
        lasts: float,
        clock: Callable[[], float] = time.time,
        chance: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Begin with none; each `lasts` so many seconds."""
        self.lasts = lasts
        self._clock = clock
        self._chance = chance
        self._key = chance(32)
        #: Those that have been ended before their time, and until when they would have been good.
        self._ended: dict[str, float] = {}

    def begin(self, who: str) -> str:
        """Begin one; the cookie that says so."""
        said = json.dumps([self._chance(16).hex(), who, self._clock() + self.lasts])
        text = urlsafe_b64encode(said.encode()).decode()
        return f"{text}.{self._signature('session', text)}"

    def read(self, cookie: str) -> Session | None:
        """The session that the cookie stands for; None if we have not signed it, or it is over."""
        text, _, signature = cookie.partition(".")
        if len(cookie) > _LONGEST or not _equal(signature, self._signature("session", text)):
            return None
        id_, who, until = json.loads(urlsafe_b64decode(text))
        if until <= self._clock() or id_ in self._ended:
            return None
        return Session(id_, who, until, self._signature("form", id_))

    def goes_on(self, session: Session) -> bool:
        """Whether it has neither expired nor been ended."""
        return session.until > self._clock() and session.id not in self._ended

    def end(self, session: Session) -> None:
        """End it before its time."""
        now = self._clock()
        self._ended = {id_: until for id_, until in self._ended.items() if until > now}
        self._ended[session.id] = session.until

    def _signature(self, what: str, text: str) -> str:
        return hmac.new(self._key, f"{what} {text}".encode(errors="replace"), sha256).hexdigest()


def session_of(request: Request) -> Session:
    """Who makes the request; the guard has let nobody else in."""
    return cast(Session, request.state.session)


def matches(session: Session, form_token: str) -> bool:
    """Whether a form with that token is of one of the session's own pages."""
    return _equal(form_token, session.form_token)


def _equal(one: str, other: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))
