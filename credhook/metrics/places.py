"""Where each of several processes counts: in one folder, in files of its place among them.

prometheus_client names a process's files after its pid. A process that takes the place of a dead one would then begin
anew beside the files of the dead, and so would each fork: their number would grow with every death, and each scrape
reads all of them. Named after the place, they are as many as there are places, and who comes next counts on.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final

#: Variables that a supervisor gives its processes: prometheus_client's own, and the place.
FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
PLACE: Final = "PROMETHEUS_MULTIPROC_PLACE"


def environment_of(environment: Mapping[str, str], place: int) -> dict[str, str]:
    """The environment of the process in that place."""
    return {**environment, PLACE: str(place)}


def identity(place: str, pid: Callable[[], int] = os.getpid) -> Callable[[], str]:
    """What the files of this process are named after, asked at each count.

    A fork that works for this process, one after the other, has files of its own: they share no memory. By the other
    name prometheus_client sees that there was a fork, and reads what the fork before has counted.
    """
    ours = pid()
    return lambda: place if pid() == ours else f"{place}-fork"
