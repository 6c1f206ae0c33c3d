"""Times as programs read them: ISO 8601 in UTC, to the millisecond, with a Z at the end."""

from datetime import UTC, datetime

from credhook.store import LATEST


def time_of(milliseconds: int | None) -> str | None:
    """So many milliseconds since the epoch; None where that is no time."""
    if milliseconds is None or not 0 <= milliseconds <= LATEST:
        return None
    return written(datetime.fromtimestamp(milliseconds / 1000, UTC))


def written(moment: datetime) -> str:
    """The moment, whatever its zone."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
