"""The store of the queue `credhook`, on a test's own client."""

from credhook.store.store import Client, Store


def store_on(redis: Client, queue: str = "credhook", *, retention: int = 3_600) -> Store[Client]:
    return Store(redis, queue, retention=retention)
