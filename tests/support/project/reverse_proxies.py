"""The proxies of deploy/ in front of receivers at two addresses: the real programs with the files that are shipped."""

import shutil
import socket
import socketserver
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from credhook.sandbox.local.environment import free_port
from support import plain
from support.checkout import ROOT
from support.in_thread import in_thread
from support.process.serving import Executed
from support.waiting import until

DEPLOY = ROOT / "deploy"
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
        return plain.post(self.url + path, content=content, headers=headers, verify=self.trust).status_code


class _NameServer(socketserver.BaseRequestHandler):
    """Answers every question with the receivers' addresses, as Docker's name server does for a service."""

    def handle(self) -> None:
        query, server = self.request
        end = query.index(b"\0", 12) + 5  # After a head of 12 bytes: the name, its end, type and class.
        found = ADDRESSES if query[end - 4 : end - 2] == b"\0\1" else []  # The type of IPv4.
        head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(found), 0, 0)
        # Each answer names the place of the question's name, type, class, and seconds that it lasts.
        records = [struct.pack(">HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address) for address in found]
        server.sendto(head + query[12:end] + b"".join(records), self.client_address)


def needs(name: str) -> None:
    """Skip the test if the machine lacks the program."""
    if shutil.which(name) is None:
        pytest.skip(f"no {name}; `make debian` installs it where apt is there")


@contextmanager
def proxied(name: str, folder: Path, receivers_port: int, authority: trustme.CA) -> Iterator[Proxy]:
    """Run the proxy of that name until the end of the block. It is ready once a receiver is."""
    certificate, port = folder / "credhook.pem", free_port()
    authority.issue_cert("localhost", "inbox").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    first, second = (f"{address}:{receivers_port}" for address in ADDRESSES)
    text = (DEPLOY / "nginx.conf").read_text().replace("/tmp", str(folder)).replace("/etc/nginx/tls", str(folder))
    text = text.replace("127.0.0.1:8000", first).replace("127.0.0.1:8001", second).replace("8443", str(port))
    (folder / "nginx.conf").write_text(text)
    with in_thread(socketserver.UDPServer(("127.0.0.1", 0), _NameServer)) as names:
        environment = {
            "PROXY_BIND": f"127.0.0.1:{port}",
            "PROXY_CERTIFICATE": str(certificate),
            "RECEIVER": f"receiver:{receivers_port}",
            "RESOLVER": f"127.0.0.1:{names.server_address[1]}",
            "SITE": f"https://localhost:{port}, https://inbox:{port}",
            "TLS_FILES": f"{certificate} {certificate}",
            "RECEIVERS": f"{first} {second}",
            "BUFFERS": "buffer_requests",  # Debian's Caddy is 2.6.2.
            "HOME": str(folder),
        }
        options = {
            "haproxy": ("-db", "-f", str(DEPLOY / "haproxy.cfg")),
            "nginx": ("-e", "stderr", "-c", f"{folder}/nginx.conf", "-g", "daemon off;"),
            "caddy": ("run", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"),
        }
        proxy = Proxy(name, port, trust, folder / f"{name}.log")
        with Executed(proxy.log, name, *options[name], environment=environment) as process:
            until(lambda: process.answers(f"{proxy.url}/readyz", verify=trust), what=f"{name} with a receiver")
            yield proxy
