"""Every form of `REDIS_URL`, with a real server behind each."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trustme

from credhook.sandbox.local.environment import find_server, free_port
from support.platform.tunnel import tunnel

#: An address, and the environment that it takes.
Reached = tuple[str, dict[str, str]]


@contextmanager
def over_tcp(folder: Path, url: str) -> Iterator[Reached]:
    yield url.removesuffix("/0") + "/3", {}


@contextmanager
def over_a_unix_socket(folder: Path, url: str) -> Iterator[Reached]:
    yield f"unix://{folder}/redis.sock", {}


@contextmanager
def over_tls(folder: Path, url: str, *, mutual: bool = False) -> Iterator[Reached]:
    """Put TLS in front: the wheel's Redis is built without. `mutual`: it asks for a client's certificate."""
    authority, environment = trustme.CA(), {"SSL_CERT_FILE": str(folder / "authority.pem")}
    authority.cert_pem.write_to_path(environment["SSL_CERT_FILE"])
    if mutual:
        environment["CREDHOOK_REDIS_CERTFILE"] = str(folder / "own.pem")
        own = authority.issue_cert("credhook").private_key_and_cert_chain_pem
        own.write_to_path(environment["CREDHOOK_REDIS_CERTFILE"])
    known = authority if mutual else None
    with tunnel(authority.issue_cert("127.0.0.1"), urlsplit(url).port or 0, known=known) as front:
        yield front.replace("https:", "rediss:"), environment


over_mutual_tls = partial(over_tls, mutual=True)


@contextmanager
def through_sentinel(folder: Path, url: str) -> Iterator[Reached]:
    with sentinel(folder, urlsplit(url).port or 0) as port:
        yield f"redis+sentinel://127.0.0.1:{port}/main", {}


@contextmanager
def sentinel(folder: Path, master: int, *options: str, password: str = "") -> Iterator[int]:
    """Run a Sentinel that watches the Redis on the port `master`, as `main`. Yield its own port.

    `password`: it wants this one from its clients.
    """
    port, configuration = free_port(), folder / "sentinel.conf"
    lines = (f"monitor main 127.0.0.1 {master} 1", *options)
    own = f"port {port}\nbind 127.0.0.1\n" + (f"requirepass {password}\n" if password else "")
    configuration.write_text(own + "".join(f"sentinel {line}\n" for line in lines))
    process = subprocess.Popen(
        [find_server(), str(configuration), "--sentinel"], stdout=subprocess.DEVNULL, cwd=folder, start_new_session=True
    )
    try:
        yield port
    finally:
        process.kill()
        process.wait()
