"""A PostgreSQL of the tests' own, on a Unix socket in a temporary folder."""

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

#: Where it is looked for besides PATH: Debian keeps the programs of each version apart.
DEBIAN = "usr/lib/postgresql/*/bin/initdb"

#: Why a test is skipped that finds none.
MISSING = "no PostgreSQL on PATH or in /usr/lib/postgresql; `make debian` installs it where apt is there"

#: Seconds until it must answer.
PATIENCE = 60.0


def programs() -> Path | None:
    """The folder of its programs; of several versions, one of the newest."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    beside = sorted(Path("/").glob(DEBIAN), key=lambda path: float(path.parts[-3]))
    return beside[-1].parent if beside else None


@contextmanager
def postgres_server(programs: Path) -> Iterator[str]:
    """Run it for the length of the block; the URL of its database.

    Not below TMPDIR: a socket's path is short, and whom it runs as, where we are root, must be able to get there.
    """
    with TemporaryDirectory(prefix="postgres-", dir="/tmp", ignore_cleanup_errors=True) as kept:
        folder = Path(kept)
        become = _somebody_but_root(folder)
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
            server.send_signal(signal.SIGINT)  # It does not wait for its clients.
            server.wait(PATIENCE)


def _somebody_but_root(folder: Path) -> list[str]:
    """What runs a command as somebody else where we are root, which it refuses to be; the folder is theirs then."""
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
