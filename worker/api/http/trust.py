"""Whom we trust over TLS, and what we show to servers that ask who we are."""

import functools
import os
import ssl
from pathlib import Path

import certifi


def shared_ssl_context(certfile: Path | None = None, keyfile: Path | None = None) -> ssl.SSLContext:
    """The process's own trust: SSL_CERT_FILE or SSL_CERT_DIR, otherwise the authorities that browsers trust.

    Loading it takes longer than a request, so it is loaded once. `certfile` holds our certificate and those of its
    issuers, for servers that ask for one, and `keyfile` its key, if that is not in the same file; both are PEM.

    Raises:
        OSError: A file cannot be read; the settings have tried it.
    """
    return _loaded(certfile, keyfile)


@functools.cache
def _loaded(certfile: Path | None, keyfile: Path | None) -> ssl.SSLContext:
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    context = ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)
    if certfile is not None:
        context.load_cert_chain(certfile, keyfile)
    return context
