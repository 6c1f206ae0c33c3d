"""Run a PostgreSQL for the tests, on a Unix socket in a temporary folder."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

#: Debian keeps the programs of each version apart, outside of PATH.
DEBIAN = "usr/lib/postgresql/*/bin/initdb"

#: Why tests are skipped without PostgreSQL.
MISSING = "no PostgreSQL on PATH or in /usr/lib/postgresql; `make debian` installs it where apt is there"

#: Seconds until it must answer.
PATIENCE = 60.0


def programs() -> Path | None:
    """Return the folder of its programs, of the newest version."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    beside = sorted(Path("/").glob(DEBIAN), key=lambda path: float(path.parts[-3]))
    return beside[-1].parent if beside else None


@contextmanager
def postgres_server(programs: Path) -> Iterator[str]:
    """Run a server for the block, and yield the URL of its database.

    The folder is in /tmp and not in TMPDIR: a socket's path must be short, and another user must be able to reach it.
    """
    with TemporaryDirectory(prefix="postgres-", dir="/tmp", ignore_cleanup_errors=True) as kept:
        folder = Path(kept)
        become = _drop_root(folder)
        initialise = [*become, f"{programs}/initdb", "-D", "data", "-U", "postgres", "--auth=trust", "--no-sync"]
        subprocess.run(initialise, check=True, capture_output=True, cwd=folder)
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"]
        with (folder / "log").open("wb") as log:
            command = [*become, f"{programs}/postgres", "-D", "data", "-k", kept, *options]
            server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        url = f"postgresql:///postgres?host={folder}&user=postgres"
        try:
            _answers(server, url, folder / "log")
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # Fast shutdown: it does not wait for clients.
            server.wait(PATIENCE)


def _drop_root(folder: Path) -> list[str]:
    """Return the command prefix that leaves root, because PostgreSQL refuses to run as root. Chown the folder."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]


def _answers(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"no answer within {PATIENCE} s: {log.read_text()}"
            time.sleep(0.05)
        else:
            return
