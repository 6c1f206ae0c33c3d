"""Credentials of a client that never asks for a token."""

import math

from credhook.worker.api.token import ClientCredentials, Token


def credentials() -> ClientCredentials:
    """Ours, with a token already."""
    credentials = ClientCredentials("http://127.0.0.1:1/token", "me", "s3cret")
    credentials._token = Token("t", renew_at=math.inf)
    return credentials
