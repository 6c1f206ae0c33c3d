"""What one failure of an attempt was: whose, of what class, where. Failures that agree in this have one cause.

Nothing of it is a message or a value: both may hold claims. Of a handler that was given up, the reason that its author
gave stands in the event's own record, which expires and can be erased; a cause outlives both, so it has none.
"""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

#: Who has failed, where it is no handler: the fetch, and a worker process that has died. Handlers' names have a dot.
FETCH: Final = "fetch"
WORKER: Final = "worker"
#: Characters that are kept of each text: a name may be as long as its author likes.
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure.

    Attributes:
        who: the handler's name, `fetch` or `worker`.
        what: the class of the error, with what is known of why: a status, say.
        where: module and function of the author's code, "" if none was involved. They stay what they are when lines
            move and when a release lies in another folder; therefore neither line nor file tells causes apart.
        at: the same place as it is shown, `file:line function`, of this failure.
        version: of the code that has failed.
        milliseconds: how long the handler ran, if it did.
    """

    who: str
    what: str
    where: str = ""
    at: str = ""
    version: str = ""
    milliseconds: float | None = None

    @property
    def cause(self) -> str:
        """The id of its cause: eight hexadecimal digits, the same in every process and version."""
        return sha256(f"{self.who}\0{self.what}\0{self.where}".encode(errors="replace")).hexdigest()[:8]

    def counted(self) -> dict[str, str]:
        """As causes.lua wants it."""
        texts = {"who": self.who, "what": self.what, "at": self.at, "version": self.version}
        return {"id": self.cause, **{name: _storable(text) for name, text in texts.items()}}

    def told(self) -> dict[str, Any]:
        """As an event's story has it; what is empty is left out."""
        texts = {"who": self.who, "what": self.what, "at": self.at}
        told: dict[str, Any] = {name: _storable(text) for name, text in texts.items() if text}
        if self.milliseconds is not None:
            told["ms"] = self.milliseconds
        return {"cause": self.cause, **told}


def worker_died() -> Failure:
    """What is counted when a worker process dies while it works on an event."""
    return Failure(WORKER, "WorkerDied", version=credhook_version())


@cache
def credhook_version() -> str:
    """Ours, as it is shown: `credhook 1.2.3`."""
    try:
        return f"credhook {version('credhook')}"
    except PackageNotFoundError:  # Run from a folder that nobody has installed.
        return "credhook"


def _storable(text: str) -> str:
    return text[:_LONGEST].encode(errors="replace").decode()
