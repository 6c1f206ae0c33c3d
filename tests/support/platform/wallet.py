"""A credential in the wallet, as the platform writes it."""

from typing import Any

WALLET: dict[str, Any] = {
    "id": "0b0e6d0c-7a43-4c6c-8a39-6b8a0c6a7a11",
    "claims": {"name": "Ada", "deep": {"list": [1, True, None]}},
    "iat": "2026-11-01T10:00:00Z",
    "status": "accepted",
    "format": "vc+sd-jwt",
    "vct": "v",
}
