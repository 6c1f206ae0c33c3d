"""A certificate of ours, as settings name it: tried when they are read, so that a wrong one stops the start."""

import importlib
import ssl
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import structlog

log = structlog.get_logger("credhook")

#: How long before its end a certificate is spoken of.
SOON: Final = timedelta(days=14)


def check_certificate(certfile: Path | None, keyfile: Path | None, *, names: tuple[str, str]) -> None:
    """Try to load a PEM certificate chain, if there is one, with its key, which may be in the same file.

    Raises:
        ValueError: they do not go together, or cannot be read. The message names the setting.
    """
    if certfile is None and keyfile is not None:
        raise ValueError(f"{names[0]}: should be set where {names[1]} is")
    if certfile is not None:
        try:
            # An encrypted key is refused, not asked about.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certfile, keyfile, password="")
        except OSError:
            raise ValueError(
                f"{names[0]}: should be a readable PEM certificate chain, with its key, not encrypted, in the same "
                f"file or in {names[1]}"
            ) from None


def valid_until(certfile: Path) -> datetime:
    """When the certificate ends, in UTC: the first of the file, which is the one that is shown.

    Raises:
        OSError, ValueError: the file cannot be read, or is no certificate.
    """
    # Few processes have a certificate, and the others are to stay small.
    x509: Any = importlib.import_module("cryptography.x509")
    until: datetime = x509.load_pem_x509_certificates(certfile.read_bytes())[0].not_valid_after_utc
    return until


def remark_on_expiry(certfile: Path | None, *, name: str, now: datetime) -> None:
    """Say in the log that a certificate, which `check_certificate` has tried, has expired or soon will.

    It stops nothing: some senders do not look, and a receiver that is down takes no delivery at all.
    """
    if certfile is None:
        return
    until = valid_until(certfile)
    ends, hint = until.isoformat(timespec="seconds"), f"renew the file that {name} names, and restart"
    if until <= now:
        log.error("certificate_expired", setting=name, ended=ends, hint=hint)
    elif until - now < SOON:
        log.warning("certificate_expires", setting=name, ends=ends, hint=hint)
