"""A platform's circuit as the fleet has it written in Redis, and how it is read back. Pure.

<open: 0 or 1> <score> <trips> <until, in seconds of Redis's clock> <when it was written, in microseconds of it>
"""

import re
from dataclasses import dataclass, field
from typing import Final

from credhook.worker.platform.breaker import LONGEST_ASKED, THRESHOLD, Circuit

#: Bytes of what is written, at most: no more of what stands there is looked at.
LONGEST: Final = 100
#: Seconds beyond the longest pause that is written: two looks at Redis's clock can be as far apart.
SLACK: Final = 60.0

#: Microseconds by which Redis's clock may have been set back before a look from the past is believed.
_SET_BACK: Final = 5_000_000

_FORM: Final = re.compile(rb"([01]) (\d{1,3}) (\d{1,9}) (\d{1,16}\.\d{3}) \d{1,20}")
_MESSAGE: Final = re.compile(rb"(\d{1,20}) (.*)", re.DOTALL)


class NotACircuit(ValueError):
    """Somebody else has written it, or a version of ours that is yet to come. The message quotes none of it."""


@dataclass(frozen=True, slots=True)
class CircuitSnapshot:
    """What stood there at some moment.

    Attributes:
        at: that moment, in microseconds of Redis's clock; 0 for never.
        text: as it is written; empty for a circuit of which there is nothing to say.
        circuit: what it says, on this process's monotonic clock.
    """

    at: int = 0
    text: bytes = b""
    circuit: Circuit = field(default_factory=Circuit)

    def precedes(self, other: "CircuitSnapshot") -> bool:
        """Whether it is the older one, and not of a clock that was set back."""
        return other.at - _SET_BACK < self.at < other.at


def written(circuit: Circuit, *, ahead: float) -> bytes:
    """The circuit as it is written, but for when; Redis's clock is `ahead` of the circuit's by so many seconds."""
    until = circuit.until + ahead if circuit.is_open else 0.0
    return f"{int(circuit.is_open)} {circuit.score} {circuit.trips} {until:.3f}".encode()


def read(text: bytes, *, now: float, ahead: float) -> Circuit:
    """What a text says; an empty one is of a circuit of which there is nothing to say.

    `now` is by the circuit's clock, and Redis's is `ahead` of that; both in seconds.

    Raises:
        NotACircuit: it says nothing that we would write.
    """
    if not text:
        return Circuit()
    match = _FORM.fullmatch(text)
    if match is None:
        raise NotACircuit("it has not the form of a circuit")
    is_open, score, trips, until = match.groups()
    if is_open == b"0":
        if int(score) >= THRESHOLD:
            raise NotACircuit("its score would have opened the breaker")
        return Circuit(score=int(score))
    ends = float(until) - ahead
    if ends - now > LONGEST_ASKED + SLACK:
        raise NotACircuit(f"it asks for a pause of {ends - now:.0f} s, and none is longer than {LONGEST_ASKED:.0f} s")
    return Circuit(is_open=True, trips=int(trips), until=ends)


def read_message(data: bytes) -> tuple[int, bytes]:
    """When a change was published, in microseconds of Redis's clock, and the text that stands there since.

    Raises:
        NotACircuit: it is no message of ours.
    """
    match = _MESSAGE.fullmatch(data[: 2 * LONGEST])
    if match is None:
        raise NotACircuit("it has not the form of a change")
    return int(match[1]), match[2]
