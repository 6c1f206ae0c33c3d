"""Posting one delivery, and what came of it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx
from pydantic_core import from_json

#: Seconds that an endpoint has to answer, as common senders give it. Not scaled: it is the receiver's time.
TIMEOUT = 15

#: Bytes of an answer that are read in search of `data.status`.
ANSWER_BYTES = 65_536

#: Characters of `data.status` that are logged; receivers say a word.
SAID_LENGTH = 100


@dataclass(frozen=True)
class Answer:
    """What came of sending: a status, or an error."""

    status: int | None = None
    error: str | None = None
    said: str | None = None

    @property
    def acknowledges(self) -> bool:
        """Whether the receiver has taken the delivery (specification, "Delivery rules", 4)."""
        return self.status is not None and 200 <= self.status < 300  # noqa: PLR2004  2xx.


async def send(client: httpx.AsyncClient, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
    """Post a body; whatever goes wrong becomes an answer with an error."""
    sent = [("content-type", "application/json"), ("user-agent", "credhook-sandbox"), *headers]
    try:
        async with asyncio.timeout(TIMEOUT), client.stream("POST", url, content=body, headers=sent) as answer:
            told = answer.headers.get("credhook-outcome") or said(await _beginning(answer))
            return Answer(status=answer.status_code, said=told)
    except TimeoutError:
        return Answer(error=f"no answer within {TIMEOUT} s")
    except Exception as problem:  # noqa: BLE001  A URL that cannot be reached, in any way, is a failed attempt.
        return Answer(error=f"{type(problem).__name__}: {problem}")


async def _beginning(answer: httpx.Response) -> bytes:
    read = b""
    async for part in answer.aiter_bytes():
        read += part
        if len(read) > ANSWER_BYTES:
            break
    return read


def said(body: bytes) -> str | None:
    """Return `data.status` of a receiver's answer, where there is one."""
    with suppress(ValueError, KeyError, TypeError):
        status = from_json(body)["data"]["status"]
        return status[:SAID_LENGTH] if isinstance(status, str) else None
    return None
