"""Failures of attempts: who failed, with which class of error, and where. Failures that agree in this have one cause.

A failure holds no message and no value, because both may hold personal data. The reason for which a handler gave up
stands in the event's own record, which expires and can be erased. A cause outlives the record, so it has no reason.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from credhook.store import WORKER
from credhook.store.announcements import version

#: Maximum characters of each text, because names may be of any length.
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure.

    Attributes:
        who: the handler's name, `FETCH` or `WORKER`.
        what: the class of the error, and its status if it has one.
        where: module and function of the author's code, or "". Neither line nor file is part of it, because both change
            between releases.
        at: the same place for people, `file:line function`.
        package: the distribution of that code with its version, or "".
        milliseconds: run time of the handler, if it ran.
    """

    who: str
    what: str
    where: str = ""
    at: str = ""
    package: str = ""
    milliseconds: float | None = None

    @property
    def cause(self) -> str:
        """Return the id of the cause: eight hexadecimal digits, the same in every process and version."""
        return sha256(f"{self.who}\0{self.what}\0{self.where}".encode(errors="replace")).hexdigest()[:8]

    def described(self) -> dict[str, str]:
        """Return the failure as causes.lua reads it, with the versions of the code that failed and of ours."""
        versions = ", ".join(filter(None, (self.package, f"credhook {version()}")))
        texts = {"who": self.who, "what": self.what, "at": self.at, "version": versions}
        return {"id": self.cause, **{name: _storable(text) for name, text in texts.items()}}

    def history(self) -> dict[str, Any]:
        """Return the failure for the event's history, without empty fields."""
        texts = {"who": self.who, "what": self.what, "at": self.at}
        entry: dict[str, Any] = {name: _storable(text) for name, text in texts.items() if text}
        if self.milliseconds is not None:
            entry["ms"] = self.milliseconds
        return {"cause": self.cause, **entry}


#: Noted when a worker process dies with an event.
WORKER_DIED: Final = Failure(WORKER, "WorkerDied")


def _storable(text: str) -> str:
    return text[:_LONGEST].encode(errors="replace").decode()
