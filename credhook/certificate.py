"""Check our own certificates when the settings are read, so that a wrong one stops the start."""

import ssl
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger("credhook")

#: Log a warning this long before a certificate expires.
SOON: Final = timedelta(days=14)


def check_certificate(certfile: Path | None, keyfile: Path | None, *, names: tuple[str, str]) -> None:
    """Try to load a PEM certificate chain, if there is one, with its key, which may be in the same file.

    Raises:
        ValueError: the files do not match, or cannot be read. The message names the setting.
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
    """Return when the first certificate of the file expires, in UTC. Peers see that certificate.

    Raises:
        OSError, ValueError: the file cannot be read, or holds no certificate.
    """
    # Most processes have no certificate and save the memory.
    from cryptography import x509

    return x509.load_pem_x509_certificates(certfile.read_bytes())[0].not_valid_after_utc


def remark_on_expiry(certfile: Path | None, *, name: str, now: datetime) -> None:
    """Log that a certificate has expired or soon will.

    Go on in either case: some senders do not check, and a stopped receiver takes no delivery at all.
    """
    if certfile is None:
        return
    until = valid_until(certfile)
    ends, hint = until.isoformat(timespec="seconds"), f"renew the file that {name} names, and restart"
    if until <= now:
        log.error("certificate_expired", setting=name, ended=ends, hint=hint)
    elif until - now < SOON:
        log.warning("certificate_expires", setting=name, ends=ends, hint=hint)
