"""What a sandbox is told when it starts, in one frozen object."""

from dataclasses import dataclass, field
from pathlib import Path

from credhook.sandbox.tenant.faults import Faults

#: Published on purpose: it signs nothing but the deliveries of sandboxes, and a fixed value lets
#: `credhook sandbox --env` in another process agree with a sandbox that already runs.
SANDBOX_SECRET = "whsec_c2FuZGJveC1vbmx5LXB1Ymxpc2hlZC1ieS1jcmVkaG9vaw=="  # noqa: S105  Published, see above.

#: Real senders wait hours between late retries. A thousandth of that lets the whole schedule, a day and four
#: hours, pass in 100 seconds.
TIME_SCALE = 0.001


@dataclass(frozen=True)
class Settings:
    """How one sandbox behaves, as the options of `credhook sandbox` say.

    Without signing secrets deliveries are unsigned; without a file for its state everything is kept in memory.
    `base_url` is without a trailing slash.
    """

    base_url: str = "http://127.0.0.1:8700"
    signing_secrets: tuple[str, ...] = field(default=(SANDBOX_SECRET,), repr=False)
    authority: Path | None = None
    state: Path | None = None
    time_scale: float = TIME_SCALE
    faults: Faults = field(default_factory=Faults)
    hosts: tuple[str, ...] = ()
