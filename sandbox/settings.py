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
    """How one sandbox behaves.

    Attributes:
        base_url: Root of the addresses that the sandbox names in offers, without a trailing slash.
        signing_secrets: `whsec_…` and `whsk_…` keys that sign every delivery; none means unsigned.
        authority: PEM file of an authority that deliveries trust besides the system's.
        state: SQLite file that outlives a restart; none keeps everything in memory.
        time_scale: What retry waits and the endpoint's patience are multiplied by.
        faults: Faults that are on from the start.
        hosts: Names accepted in the `Host` header besides `localhost` and addresses.
    """

    base_url: str = "http://127.0.0.1:8700"
    signing_secrets: tuple[str, ...] = field(default=(SANDBOX_SECRET,), repr=False)
    authority: Path | None = None
    state: Path | None = None
    time_scale: float = TIME_SCALE
    faults: Faults = field(default_factory=Faults)
    hosts: tuple[str, ...] = ()
