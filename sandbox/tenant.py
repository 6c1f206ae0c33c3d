"""The organisation that the sandbox plays: its records, its tokens and the faults that are on."""

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from credhook.sandbox.wire import WHOLE, Whole, WireModel

R = TypeVar("R", bound=WireModel)

TOKEN_PATH = "/realms/sandbox/protocol/openid-connect/token"  # noqa: S105  A path.
CLIENT_ID = "sandbox"
CLIENT_SECRET = "sandbox"  # noqa: S105  Published, since it opens only sandboxes.

TOKEN_LIFETIME_SECONDS = 300

SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (kind, id)
);
CREATE INDEX IF NOT EXISTS records_in_order ON records (kind, seq);
"""

#: A number of things or milliseconds. The bound, a quarter of an hour, keeps a typing error from hanging a client.
Count = Annotated[int, Field(ge=0, le=1_000_000), WHOLE]


class StateFile:
    """Every record of the sandbox, by model and id, in the order of creation.

    It is one SQLite table, in memory or in a file that one process may use at a time.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open the file, or memory. Raise `sqlite3.Error` if the file is in use or not a database."""
        # Autocommit. `check_same_thread` is off because a server may be built in one thread and run in another.
        self._db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False, timeout=1)
        self._db.executescript(SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything of the block, or nothing of it."""
        with self._db:
            self._db.execute("BEGIN")
            yield

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def put(self, id_: str, record: WireModel) -> None:
        """Store a record in place of any record of the same model and id."""
        self._db.execute(
            "INSERT INTO records (kind, id, body) VALUES (?, ?, ?)"
            " ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body",
            (type(record).__name__, id_, record.model_dump_json(by_alias=True, exclude_unset=True)),
        )

    def get(self, model: type[R], id_: str) -> R | None:
        """Return the record, or None."""
        return next(self._read(model, "AND id = ?", id_), None)

    def find(self, model: type[R], id_: str, noun: str) -> R:
        """Return the record, or raise a 404 that names the noun."""
        record = self.get(model, id_)
        if record is None:
            raise HTTPException(404, f"There is no {noun} {id_}.")
        return record

    def where(self, model: type[R], field: str, value: str) -> R | None:
        """Return the first record whose field, named as on the wire, has the value."""
        return next(self._read(model, "AND json_extract(body, ?) = ? ORDER BY seq", f"$.{field}", value), None)

    def all(self, model: type[R]) -> list[R]:
        """Return every record of a model, the oldest first."""
        return list(self._read(model, "ORDER BY seq"))

    def latest(self, model: type[R], count: int) -> list[R]:
        """Return the newest records, the newest first."""
        return list(self._read(model, "ORDER BY seq DESC LIMIT ?", count))

    def page(self, model: type[R], after: int, size: int) -> tuple[list[R], int | None]:
        """Return a page of records, and the `after` of the next page or None. The first page is after 0."""
        query = "SELECT seq, body FROM records WHERE kind = ? AND seq > ? ORDER BY seq LIMIT ?"
        rows = self._db.execute(query, (model.__name__, after, size + 1)).fetchall()
        shown = rows[:size]
        return [model.model_validate_json(body) for _, body in shown], shown[-1][0] if len(rows) > size else None

    def before(self, model: type[WireModel], after: int, size: int) -> int | None:
        """Return the `after` of the page that ends at this one, or None if this is the first page."""
        query = "SELECT seq FROM records WHERE kind = ? AND seq <= ? ORDER BY seq DESC LIMIT ?"
        shown = [seq for (seq,) in self._db.execute(query, (model.__name__, after, size + 1))]
        return None if not shown else shown[size] if len(shown) > size else 0

    def last(self, model: type[WireModel], size: int) -> int:
        """Return the `after` of the last page."""
        query = "SELECT seq FROM records WHERE kind = ? ORDER BY seq LIMIT 1 OFFSET ?"
        offset = (self.count(model) - 1) // size * size - 1
        row = self._db.execute(query, (model.__name__, offset)).fetchone() if offset > 0 else None
        return int(row[0]) if row else 0

    def count(self, model: type[WireModel]) -> int:
        """Return the number of records of a model."""
        row = self._db.execute("SELECT count(*) FROM records WHERE kind = ?", (model.__name__,)).fetchone()
        return int(row[0])

    def remove(self, model: type[WireModel], id_: str) -> bool:
        """Delete a record and return True if there was one."""
        query = "DELETE FROM records WHERE kind = ? AND id = ?"
        return self._db.execute(query, (model.__name__, id_)).rowcount > 0

    def _read(self, model: type[R], condition: str, *values: object) -> Iterator[R]:
        query = f"SELECT body FROM records WHERE kind = ? {condition}"  # noqa: S608  The condition is our own, see above.
        for (body,) in self._db.execute(query, (model.__name__, *values)):
            yield model.model_validate_json(body)


@dataclass
class TokenIssuer:
    """Issues and checks access tokens. A restart forgets them, and clients ask for new ones.

    `clock` returns seconds since 1970.
    """

    clock: Callable[[], float]
    _expiry: dict[str, float] = field(default_factory=dict)

    def issue(self) -> str:
        """Return a new token."""
        token = secrets.token_urlsafe(32)
        self._expiry[token] = self.clock() + TOKEN_LIFETIME_SECONDS
        return token

    def check(self, authorization: str | None) -> str:
        """Return the token of an `Authorization` header, or answer 401 (specification, "Authentication", 5)."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or self._expiry.get(token, 0) <= self.clock():
            raise unauthorized("The access token is missing, unknown or expired.")
        return token

    def revoke(self, token: str) -> None:
        """Forget a token before it expires."""
        self._expiry.pop(token, None)

    async def grant(self, request: Request) -> Response:
        """Answer a request for a token.

        The token endpoint belongs to the identity provider. So its errors have the form of RFC 6749 and the
        provider's wording, not the API's `errors` envelope.
        """
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/x-www-form-urlencoded":
            return _refuse(415, "invalid_request", "The body should be application/x-www-form-urlencoded")
        form = await read_form(request)
        if (grant_type := form.get("grant_type")) != "client_credentials":
            error = "invalid_request" if grant_type is None else "unsupported_grant_type"
            return _refuse(400, error, "grant_type should be client_credentials")
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            return _refuse(401, "invalid_client", "Invalid client or Invalid client credentials")
        granted = {
            "access_token": self.issue(),
            "expires_in": TOKEN_LIFETIME_SECONDS,
            "refresh_expires_in": 0,
            "token_type": "Bearer",
            "not-before-policy": 0,
            "scope": "",
        }
        return JSONResponse(granted, headers={"Cache-Control": "no-store"})


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Starlette's own reader would need another package."""
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace")))


def unauthorized(detail: str) -> HTTPException:
    """Return the 401 of the specification."""
    return HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


def _refuse(status: int, error: str, description: str) -> Response:
    return JSONResponse({"error": error, "error_description": description}, status)


class Faults(WireModel):
    """The faults that are on. Every default means "off". Counts that say "next" run down by themselves."""

    duplicate: Whole = Field(1, ge=1, le=100, description="Deliver each event N times under one webhook-id.")
    reorder: Count = Field(0, description="Hold N deliveries back, then send the last first.")
    delay_ms: Count = Field(0, description="Wait before the first attempt.")
    drop: Count = Field(0, description="Lose the first N attempts of each delivery on the way.")
    lose_answers: Count = Field(0, description="Lose the receiver's first N answers to each delivery, and redeliver.")
    forge: Whole = Field(0, ge=0, le=100, description="Send N forgeries beside each delivery.")
    details_lag_ms: Count = Field(0, description="Answer 404 to details until this long after the event.")
    details_stale_ms: Count = Field(0, description="Show details as they were until this long after the event.")
    read_once: bool = Field(False, description="Let a read of a presentation use its attributes up.")
    envelopes: Literal["documented", "swapped", "alternating"] = Field(
        "documented", description="Swap bare bodies and `data` envelopes, always or at every other answer."
    )
    page_size: Whole = Field(1000, ge=1, le=1_000_000, description="Show N issuances, presentations or users per page.")
    offers_by_value: bool = Field(False, description="Write the credential offers of new issuances by value.")
    consent: Literal["accepted", "pending", "rejected"] = Field(
        "accepted", description="Status of the credentials of an offer that the wallet takes."
    )
    no_iss: bool = Field(False, description="Leave `iss` out of the wallet's credentials.")
    all_links: bool = Field(False, description="Send every link of the specification beside `data`.")
    meta: bool = Field(False, description="Send `meta` with a null value beside `data`, and in errors.")
    error_source: bool = Field(False, description="Send the `source` of errors: a pointer or a parameter.")
    hide_archived: bool = Field(False, description="Answer 404 to reads of archived templates.")
    unauthorized: Count = Field(0, description="Refuse the next N API requests with 401 and forget their tokens.")
    server_errors: Count = Field(0, description="Answer 500 to the next N API requests.")
    rate_limit: Count = Field(0, description="Answer 429 to the next N API requests.")
    requests_per_second: Count = Field(
        0, description="Answer 429 to API requests beyond this many in a second; 0 is no limit."
    )
    retry_after: Whole = Field(1, ge=0, le=3600, description="Seconds named in the Retry-After of a 429.")
    slow_ms: Count = Field(0, description="Wait before each API answer.")


@dataclass
class FaultSwitch:
    """The current faults. The operator changes them, and counts run down."""

    on: Faults
    _second: tuple[int, int] = (0, 0)
    _swap: bool = False

    def take(self, name: Literal["unauthorized", "server_errors", "rate_limit"]) -> bool:
        """Count a fault down, and return True if it was on."""
        remaining: int = getattr(self.on, name)
        if remaining:
            self.on = self.on.model_copy(update={name: remaining - 1})
        return remaining > 0

    def swaps_envelope(self) -> bool:
        """Return True if the next answer has the other kind of envelope."""
        self._swap = self.on.envelopes == "swapped" or (self.on.envelopes == "alternating" and not self._swap)
        return self._swap

    async def disturb(self, now: float) -> None:
        """Delay one API request, or refuse it with 500 or 429. `now` is in seconds since 1970."""
        await asyncio.sleep(self.on.slow_ms / 1000)
        if self.take("server_errors"):
            raise HTTPException(500, "A fault of the sandbox: serverErrors.")
        second, count = self._second
        count = count + 1 if second == int(now) else 1
        self._second = (int(now), count)
        if self.take("rate_limit") or 0 < self.on.requests_per_second < count:
            raise HTTPException(
                429,
                "Too many requests; Retry-After says how many seconds to wait.",
                {"Retry-After": str(self.on.retry_after)},
            )


def utc_now() -> datetime:
    """Return the time that records are stamped with."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Tenant:
    """The data and services of the operations.

    `announce` sends an event about a resource to every endpoint that wants it, and returns the `webhook-id` of each
    delivery. `base_url` has no trailing slash.
    """

    base_url: str
    state: StateFile
    tokens: TokenIssuer
    faults: FaultSwitch
    announce: Callable[[str, str], list[str]]
    now: Callable[[], datetime] = utc_now
