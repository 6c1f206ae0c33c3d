"""Where the sandbox keeps everything: one SQLite table, in memory or in a file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from credhook.sandbox.http.wire import Wire

R = TypeVar("R", bound=Wire)

#: Raised when the form of stored records changes, so that an old file is refused instead of misread.
VERSION = 1

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (kind, id)
);
CREATE INDEX IF NOT EXISTS records_in_order ON records (kind, seq);
"""


class StateError(Exception):
    """The state file cannot be used; the message says why and what to do."""


class State:
    """Every record of the sandbox. One process at a time: a second one is refused when it opens the file."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the file, or a memory that ends with the process.

        Raises:
            StateError: The file is in use, is no database, or was written by another version.
        """
        try:
            # Autocommit; `check_same_thread` off because a server may be built in one thread and run in another.
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False, timeout=1)
        except sqlite3.Error as problem:
            raise StateError(f"the state file {path} cannot be opened: {problem}") from problem
        try:
            self._prepare()
        except sqlite3.Error as problem:
            self._db.close()
            locked = problem.sqlite_errorcode == sqlite3.SQLITE_BUSY
            reason = "another sandbox is using it" if locked else str(problem)
            raise StateError(f"the state file {path} cannot be used: {reason}") from problem

    def _prepare(self) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in {0, VERSION}:
            self._db.close()
            raise StateError("the state file was written by another version: remove it or name another")
        self._db.executescript(SCHEMA)
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    def shelf(self, kind: str, model: type[R]) -> "Repository[R]":
        """Return the records of one kind."""
        return Repository(self._db, kind, model)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write everything of the block, or nothing of it."""
        self._db.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


class Repository(Generic[R]):
    """Records of one kind, by id, in the order in which they were first put there."""

    def __init__(self, db: sqlite3.Connection, kind: str, model: type[R]) -> None:
        self._db = db
        self._kind = kind
        self._model = model

    def put(self, id: str, record: R) -> None:  # noqa: A002  The specification's own word.
        """Keep a record, in place of the one with the same id."""
        self._db.execute(
            "INSERT INTO records (kind, id, body) VALUES (?, ?, ?)"
            " ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body",
            (self._kind, id, record.model_dump_json(by_alias=True, exclude_unset=True)),
        )

    def get(self, id: str) -> R | None:  # noqa: A002  The specification's own word.
        """Return the record, or None."""
        return next(self._read("AND id = ?", id), None)

    def where(self, field: str, value: str) -> R | None:
        """Return the first record whose field, named as on the wire, has the value."""
        return next(self._read("AND json_extract(body, ?) = ? ORDER BY seq", f"$.{field}", value), None)

    def all(self) -> list[R]:
        """Return every record, the oldest first."""
        return list(self._read("ORDER BY seq"))

    def latest(self, count: int) -> list[R]:
        """Return the newest records, the newest first."""
        return list(self._read("ORDER BY seq DESC LIMIT ?", count))

    def page(self, after: int, size: int) -> tuple[list[R], int | None]:
        """Return the records after a place, 0 at first, in order, and the place after which the next page begins."""
        query = "SELECT seq, body FROM records WHERE kind = ? AND seq > ? ORDER BY seq LIMIT ?"
        rows = self._db.execute(query, (self._kind, after, size + 1)).fetchall()
        shown = rows[:size]
        return [self._model.model_validate_json(body) for _, body in shown], shown[-1][0] if len(rows) > size else None

    def count(self) -> int:
        """Return how many there are."""
        found = self._db.execute("SELECT count(*) FROM records WHERE kind = ?", (self._kind,)).fetchone()
        return int(found[0])

    def remove(self, id: str) -> bool:  # noqa: A002  The specification's own word.
        """Forget a record; say whether there was one."""
        gone = self._db.execute("DELETE FROM records WHERE kind = ? AND id = ?", (self._kind, id))
        return gone.rowcount > 0

    def trim(self, keep: int) -> None:
        """Forget all but the newest records."""
        self._db.execute(
            "DELETE FROM records WHERE kind = ? AND seq <="
            " (SELECT seq FROM records WHERE kind = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
            (self._kind, self._kind, keep),
        )

    def _read(self, rest: str, *values: object) -> Iterator[R]:
        query = f"SELECT body FROM records WHERE kind = ? {rest}"  # noqa: S608  `rest` is ours, see above.
        for (body,) in self._db.execute(query, (self._kind, *values)):
            yield self._model.model_validate_json(body)
