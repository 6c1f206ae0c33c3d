"""Authenticated encryption of small values that are kept where others can read and write: in Redis.

    version (1 byte) │ nonce (12 bytes) │ ciphertext and tag: AES-256-GCM

Version and the name under which a value is stored are authenticated with it: a value moved elsewhere is refused. An
older value of the same name is not: whoever can write to Redis can put it back.
"""

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import SecretStr

_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32


class NotOurs(Exception):
    """The value was not sealed by this secret for this purpose and name, or it has been changed since."""


class Cipher:
    """A key for one purpose. Nonces are random: good for some billions of values (NIST SP 800-38D, 8.3).

    Args:
        secret: What the key is derived from. It must be hard to guess, as generated ones are: derivation is fast (HKDF,
            RFC 5869, with SHA-256), and a sealed value tells whoever reads it whether a guess was right.
        purpose: Other purposes of the same secret have other keys.
    """

    def __init__(self, secret: SecretStr, purpose: str) -> None:
        derivation = HKDF(SHA256(), _KEY_BYTES, salt=None, info=f"credhook:{purpose}".encode())
        self._aead = AESGCM(derivation.derive(secret.get_secret_value().encode()))

    def encrypt(self, plain: bytes, bound_to: str) -> bytes:
        """Encrypt a value that will be stored under the name `bound_to`."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._aead.encrypt(nonce, plain, _VERSION + bound_to.encode())

    def decrypt(self, sealed: bytes, bound_to: str) -> bytes:
        """Return the value that was stored under the name `bound_to`.

        Raises:
            NotOurs: See there.
        """
        start = len(_VERSION) + _NONCE_BYTES
        if len(sealed) > start and sealed.startswith(_VERSION):
            try:
                return self._aead.decrypt(sealed[len(_VERSION) : start], sealed[start:], _VERSION + bound_to.encode())
            except InvalidTag:
                pass
        raise NotOurs(f"what is stored under {bound_to} was sealed with another secret, or changed")
