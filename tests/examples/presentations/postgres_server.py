"""Run a PostgreSQL for the tests, on a Unix socket in a temporary folder."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

#: Debian keeps the programs of each version apart, outside of PATH.
DEBIAN = "usr/lib/postgresql/*/bin/initdb"

#: Why tests are skipped without PostgreSQL.
MISSING = "no PostgreSQL on PATH or in /usr/lib/postgresql; `make debian` installs it where apt is there"


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
    with TemporaryDirectory(prefix="postgres-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        become = _drop_root(folder)

        def run(program: str, *options: str) -> None:
            subprocess.run(
                [*become, programs / program, "-D", "data", *options], check=True, stdout=subprocess.DEVNULL, cwd=folder
            )

        run("initdb", "-U", "postgres", "--auth=trust", "--no-sync")
        settings = f"-k {folder} -c listen_addresses= -c fsync=off -c shared_buffers=16MB"
        run("pg_ctl", "start", "-l", "log", "-o", settings)  # It returns once the server answers.
        try:
            yield f"postgresql:///postgres?host={folder}&user=postgres"
        finally:
            run("pg_ctl", "stop")


def _drop_root(folder: str) -> list[str]:
    """Return the command prefix that leaves root, because PostgreSQL refuses to run as root. Chown the folder."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
