"""The one check of a URL, and its normal form: settings, requests to the platform and its answers use both."""

import re
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

#: Scheme, authority, path and query of a URL that is encoded.
_URL: Final = re.compile(r"""(?i)([a-z]+)://([^\s/?#@\\"'<>%]+)(/[^\s?#@\\"'<>]*)?(\?[^\s#\\"<>]*)?""")
#: A DNS name in ASCII, or an IPv4 address.
_HOST: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_PORTS: Final = {"https": ":443", "http": ":80"}
#: Characters that may stand in a URL. `%` is among them, so encoded characters stay encoded.
_SAFE: Final = "/?:@!$&'()*+,;=~%"
#: An encoded character.
_ENCODED: Final = re.compile("%[0-9A-Fa-f]{2}")
#: Characters that mean the same whether they are encoded or not. RFC 3986, 2.3.
_UNRESERVED: Final = re.compile("[A-Za-z0-9._~-]")


def checked_url(value: str, *schemes: str, query: bool = False) -> str:
    """Return an absolute URL in ASCII, or raise ValueError. The message does not repeat it: its path may be a secret.

    Names of other scripts become Punycode, and characters of a path are percent-encoded. The rest stays as it is.
    """
    wanted = " or ".join(f"{scheme}://" for scheme in schemes)
    parts = "credentials or fragment" if query else "credentials, query or fragment"
    refusal = ValueError(f"should be an {wanted} URL without {parts}")
    match = _URL.fullmatch(value)
    if match is None or match[1].lower() not in schemes or (match[4] and not query):
        raise refusal
    try:
        split = urlsplit(value)
        host, port = split.hostname or "", split.port
        if ":" not in host:
            host = host.encode("ascii" if host.isascii() else "idna").decode()
    except ValueError:
        raise refusal from None
    if port == 0 or not (":" in host or _HOST.fullmatch(host)):
        raise refusal
    netloc = match[2] if match[2].isascii() else host + ("" if port is None else f":{port}")
    return f"{match[1]}://{netloc}{quote(match[3] or '', safe=_SAFE)}{quote(match[4] or '', safe=_SAFE)}"


def normal_url(url: str) -> SplitResult:
    """Return the parts of a URL in one spelling, for comparisons. Text that is not a URL counts as a path.

    The spelling of the host, a default port, a slash at the end and needless encoding make no difference.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return SplitResult("", "", url, "", "")
    with suppress(UnicodeError):
        host = host.encode("ascii" if host.isascii() else "idna").decode()
    netloc = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    return SplitResult(
        parts.scheme,
        netloc.removesuffix(_PORTS.get(parts.scheme, "")) if port is not None else netloc,
        _normal_text(parts.path).rstrip("/") or "/",
        _normal_text(parts.query),
        "",
    )


def _normal_text(text: str) -> str:
    """Return a path or a query with only those characters encoded that have to be."""

    def shortest(encoded: re.Match[str]) -> str:
        character = unquote(encoded[0])
        return character if _UNRESERVED.fullmatch(character) else encoded[0].upper()

    return _ENCODED.sub(shortest, quote(text, safe=_SAFE))
