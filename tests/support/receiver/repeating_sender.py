"""A platform that repeats every delivery until it is acknowledged, many at a time."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Iterable

import httpx

from support import plain
from support.receiver.signing import SECRET, body, headers

#: Deliveries under way at once.
SENDERS = 16

#: Seconds for all of them; only a receiver that is gone for good takes longer.
DEADLINE = 600.0


async def deliver_all(
    url: Callable[[], str],
    webhook_ids: Iterable[str],
    *,
    secret: Callable[[], str] = lambda: SECRET,
    trust: ssl.SSLContext = plain.NO_TLS,
    pause: float = 0.0,
) -> Counter[int]:
    """Deliver each id until it is acknowledged. Return how often each status was answered, 0 for no answer.

    `url` and `secret` are asked for each try. `pause`: seconds of each sender between two ids.
    """
    answers: Counter[int] = Counter()
    supply = iter(webhook_ids)

    async def sender() -> None:
        async with plain.AsyncClient(timeout=60, verify=trust) as client:
            for webhook_id in supply:
                await repeat(client, webhook_id)
                await asyncio.sleep(pause)

    async def repeat(client: httpx.AsyncClient, webhook_id: str) -> None:
        content = body(resource_id=f"iss_{webhook_id}")
        while True:
            try:
                signed = headers(webhook_id, content, secret=secret())
                response = await client.post(url(), content=content, headers=signed)
            except httpx.TransportError:
                answers[0] += 1
            else:
                answers[response.status_code] += 1
                if response.status_code == httpx.codes.ACCEPTED:
                    return
            await asyncio.sleep(0.05)

    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(sender() for _ in range(SENDERS)))
    return answers
