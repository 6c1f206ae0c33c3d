"""Enrol the holder of each completed issuance at many sites, and go on after a failure where it happened."""

import os
from collections.abc import AsyncIterator

import httpx

from credhook import AsyncContext, FetchedEvent, Handlers, Issuance

handlers = Handlers[httpx.AsyncClient]("enrolment")


@handlers.lifespan
async def connected() -> AsyncIterator[httpx.AsyncClient]:
    """Keep the connections of this worker process."""
    async with httpx.AsyncClient(timeout=10) as client:
        yield client


@handlers.on("openid4vc.issuance.completed", timeout=900)
async def enrol(event: FetchedEvent[Issuance], context: AsyncContext[httpx.AsyncClient]) -> None:
    """Enrol the holder at each site, and go on where the last attempt ended."""
    sites = os.environ["ENROLMENT_SITES"].split()
    for position in range(context.progress.value or 0, len(sites)):
        key = f"{context.idempotency_key}:{position}"
        answer = await context.state.put(f"{sites[position]}/{event.resource_id}", headers={"idempotency-key": key})
        answer.raise_for_status()
        await context.progress.save(position + 1)
