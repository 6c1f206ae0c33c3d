"""How the token endpoint has refused one process, for all the others to know. Pure."""

import json
from typing import Any, Final

from credhook.worker.api.calls.errors import ApiError, InvalidResponse, Unauthorized, Unavailable

#: Seconds for which the fleet does not ask again after the token endpoint has refused this client, or has answered out
#: of contract: somebody has to mend something first.
_REFUSED_FOR: Final = 10.0
#: Seconds after it could not answer, where it does not say itself when to come again.
_BUSY_FOR: Final = 2.0
#: Seconds at most, whatever it says.
LONGEST_QUIET: Final = 60.0

#: What the token endpoint's answer can be, if it is no token.
_REFUSALS: Final[dict[str, type[ApiError]]] = {
    kind.__name__: kind for kind in (Unauthorized, InvalidResponse, Unavailable)
}


def noted(refusal: ApiError) -> bytes:
    """What the other processes are told: which kind of refusal it was, and its status."""
    return json.dumps([type(refusal).__name__, refusal.status]).encode()


def refusal_from(note: bytes, seconds: float) -> ApiError:
    """The error that another process has noted; the endpoint is asked again after so many seconds."""
    name, status = json.loads(note)
    kind = _REFUSALS[name]
    message = f"token: the token endpoint has just answered {status} to another worker"
    if kind is Unauthorized:
        message += "; check CREDHOOK_CLIENT_ID, CREDHOOK_CLIENT_SECRET and CREDHOOK_TOKEN_URL"
    more: dict[str, Any] = {"retry_after": seconds} if kind is Unavailable else {}
    return kind(message, operation="token", status=status, **more)


def quiet_for(refusal: ApiError) -> float:
    """Seconds for which nobody asks again."""
    if not isinstance(refusal, Unavailable):
        return _REFUSED_FOR
    return min(refusal.retry_after or _BUSY_FOR, LONGEST_QUIET)
