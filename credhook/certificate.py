"""A certificate of ours, as settings name it: tried when they are read, so that a wrong one stops the start."""

import ssl
from pathlib import Path


def check_certificate(certfile: Path | None, keyfile: Path | None, *, names: tuple[str, str]) -> None:
    """Try to load the certificate with its key, if there is one.

    Args:
        certfile: PEM certificate chain.
        keyfile: PEM private key, if it is not in the same file.
        names: of the two settings.

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
