"""The TLS certificate of a listener, loaded again once its files have changed.

Certificates are renewed every few weeks, often by a program that does not know who uses them.
"""

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger("credhook.listener")

_HINT: Final = "the certificate before it stays in use; the files should hold a PEM chain and its key, not encrypted"


class Certificate:
    """Shows each peer the certificate that its files hold now."""

    def __init__(self, chain: Path, key: Path | None) -> None:
        """Read the chain, and its key, from PEM files. Without `key`, the chain's file holds it as well.

        Raises:
            OSError: they cannot be read, or do not fit each other.
        """
        self._chain, self._key = chain, key
        self._stamp, self._current = self._look(), self._load()

    def context(self, *_: object) -> ssl.SSLContext:
        """Return the context of a listener, as uvicorn asks for it."""
        # OpenSSL calls it at each handshake, also if the peer names no server. A context that was changed instead would
        # keep a certificate with another kind of key.
        self._current.sni_callback = self._show
        return self._current

    def _show(self, connection: ssl.SSLObject, _name: str, _first: ssl.SSLContext) -> None:
        if (stamp := self._look()) != self._stamp:
            self._stamp = stamp
            try:
                self._current = self._load()
            except OSError as error:  # One of the files may be written a moment later. That is another change.
                log.warning("certificate_not_loaded", error=type(error).__name__, hint=_HINT)
            else:
                log.info("certificate_loaded", file=str(self._chain))
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._chain, self._key, password="")  # An encrypted key is refused, not asked about.
        return context

    def _look(self) -> list[int]:
        """Return what changes with the files. A file that is away is a change as well."""
        found = []
        for file in (self._chain, self._key or self._chain):
            with suppress(OSError):
                found.append(file.stat().st_mtime_ns)
        return found
