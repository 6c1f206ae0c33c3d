"""The proxies of deploy/ in front of receivers at two addresses: the real programs with the files that are shipped."""

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
from name_server import name_server
from waiting import until

from credhook.sandbox.local.environment import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
#: The addresses of the two receivers. They listen on one port.
ADDRESSES = ["127.0.0.1", "127.0.0.2"]


@dataclass
class Proxy:
    name: str
    port: int
    trust: ssl.SSLContext
    log: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def post(self, content: bytes, headers: dict[str, str], path: str = "/webhooks") -> int:
        url = self.url + path
        return httpx.post(url, content=content, headers=headers, verify=self.trust, timeout=60).status_code

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", verify=self.trust, timeout=60).is_success
        except httpx.TransportError:
            return False


def needs(name: str) -> None:
    """Skip the test if the machine lacks the program."""
    if shutil.which(name) is None:
        pytest.skip(f"no {name}; `make debian` installs it where apt is there")


@contextmanager
def proxied(name: str, folder: Path, receivers_port: int, authority: trustme.CA) -> Iterator[Proxy]:
    """Run the proxy of that name until the end of the block. It is ready once a receiver is."""
    needs(name)
    certificate, port, log_path = folder / "credhook.pem", free_port(), folder / f"{name}.log"
    authority.issue_cert("localhost", "inbox").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    first, second = (f"{address}:{receivers_port}" for address in ADDRESSES)
    text = (DEPLOY / "nginx.conf").read_text()
    places = {
        "/tmp": str(folder),
        "127.0.0.1:8000": first,
        "127.0.0.1:8001": second,
        "8443": str(port),
        "/etc/nginx/tls": str(folder),
    }
    for place, ours in places.items():
        text = text.replace(place, ours)
    (folder / "nginx.conf").write_text(text)
    with name_server(ADDRESSES) as resolver, log_path.open("wb") as log:
        environment = {
            "PROXY_BIND": f"127.0.0.1:{port}",
            "PROXY_CERTIFICATE": str(certificate),
            "RECEIVER": f"receiver:{receivers_port}",
            "RESOLVER": resolver,
            "SITE": f"https://localhost:{port}, https://inbox:{port}",
            "TLS_FILES": f"{certificate} {certificate}",
            "RECEIVERS": f"{first} {second}",
            "BUFFERS": "buffer_requests",  # Debian's Caddy is 2.6.2.
            "HOME": str(folder),
        }
        commands: dict[str, list[str | Path]] = {
            "haproxy": ["haproxy", "-db", "-f", DEPLOY / "haproxy.cfg"],
            "nginx": ["nginx", "-e", "stderr", "-c", folder / "nginx.conf", "-g", "daemon off;"],
            "caddy": ["caddy", "run", "--config", DEPLOY / "Caddyfile", "--adapter", "caddyfile"],
        }
        process = subprocess.Popen(commands[name], env=os.environ | environment, stdout=log, stderr=log)
        proxy = Proxy(name, port, trust, log_path)
        try:
            until(lambda: proxy.is_ready() or process.poll() is not None, what=f"{name} with a receiver")
            assert process.poll() is None, log_path.read_text()
            yield proxy
        finally:
            process.terminate()  # nginx has children, which end with it.
            process.wait()
