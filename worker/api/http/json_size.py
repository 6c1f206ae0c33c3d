"""How much work a body is to read, told from its bytes before anything is made of them. Pure.

A value of two bytes becomes a model of several hundred: 3 MB of `{}` took 600 MiB and five seconds in which nothing
else moved, for parser and models hold the interpreter's lock. A thread is no help against that, and to hand models over
from another process takes as long as making them. So what one call does is bounded: a value takes 2 microseconds at
most, measured, and most values take a tenth of that.
"""

from typing import Final

#: Bytes of a successful answer that are read, unless the settings say otherwise. A page of presentations is some
#: hundred kilobytes.
LONGEST_BODY: Final = 4 * 1024 * 1024

#: Values that one resource may have: 40 ms at most. A presentation of five credentials has some hundred.
MOST_VALUES: Final = 20_000

#: Values that a list of resources may have: 60 ms at most for its JSON; its models are made one by one. 28,000 users.
MOST_LISTED: Final = 200_000

#: Values from which on a list is read beside the event loop: 4 ms.
MANY: Final = 2_000


def has_more_than(most: int, body: bytes) -> bool:
    """Whether a JSON body may have more values than that. A value takes a byte: few bodies are looked at."""
    return len(body) > most and values(body) > most


def values(body: bytes) -> int:
    """At most so many values are in a JSON body: brackets and commas inside of strings are counted as well."""
    return 1 + len(body) - len(body.translate(None, b"{[,"))
