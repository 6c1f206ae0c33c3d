"""How the C library gives memory back."""

import ctypes
from contextlib import suppress
from typing import Final

#: From malloc.h of the GNU C library.
_M_MMAP_THRESHOLD: Final = -3

#: Bytes from which a block is borrowed from the system alone: its own default.
_THRESHOLD: Final = 131_072


def return_large_blocks() -> None:
    """Have every large block given back when it is freed, and taken from the system untouched when it is allocated.

    uvloop allocates 256 KiB for each encrypted connection, of which a sender touches what it likes. The GNU C library
    raises its threshold after the first of them and keeps the next for itself, touched in ever more places: a thousand
    connections that came and went took 180 MiB instead of 90. Other C libraries do not know the function.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)


def return_free_pages() -> None:
    """Have every page given back that holds nothing any more, wherever it lies.

    A TLS connection leaves some fifty kilobytes of small blocks behind. The GNU C library gives back what is free at
    the end of its heap and keeps the holes: under floods of handshakes a receiver took 118 MiB, and its most when two
    thirds of the connections were gone; with this, 35.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
