"""Writes worker/API.md, the reference of all that handler authors import, from signatures and docstrings."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel

import credhook
from credhook.worker.api.models import RequestModel
from support.platform.token_endpoint import every_operation

TOP = """# API reference

Everything that `from credhook import …` offers; `make reference` writes this page. A field in brackets may be left out
or be None. Handlers are explained in [README.md](README.md).
"""
CLIENT = "from_env(), http; the calls below"
METHODS = {
    "Api": CLIENT,
    "AsyncApi": CLIENT,
    "Handlers": "name; on(…), on_error, on_give_up, lifespan, startup, shutdown",
}
#: They have no docstring of their own.
ALIASES = {
    "AsyncContext": "The `Context` of an `async def` handler.",
    "EVENT_TYPES": "The names of all event types.",
    "Status": "Words that the platform was seen to write as a `status`; any other word is kept, too.",
    "SyncContext": "The `Context` of a plain function.",
}


def summary(name: str) -> str:
    """The first sentence of the docstring."""
    text = ALIASES.get(name) or inspect.getdoc(getattr(credhook, name)) or ""
    return text.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".") + "."


def fields(name: str) -> str:
    """The fields and the methods, or the parameters of what is raised or made."""
    found = getattr(credhook, name)
    if name == "Status":
        return ", ".join(get_args(found))
    if isinstance(found, type) and issubclass(found, BaseModel):
        names = [field if one.is_required() else f"[{field}]" for field, one in found.model_fields.items()]
        own = [key for key, value in vars(found).items() if isinstance(value, property)]
        return ", ".join([*names, *own, *["is_(…)"] * hasattr(found, "is_")])
    if name in {"Backoff", "Context", "FailedRun", "FetchedEvent", "Options", "Page"}:
        return ", ".join(found.__annotations__)
    if name in METHODS:
        return METHODS[name]
    if name in {"ApiError", "GiveUp", "Retry"}:
        return ", ".join(one for one in inspect.signature(found).parameters if one != "message")
    return ""


def calls() -> Iterator[tuple[str, str]]:
    """Each operation as it is called, and its result."""

    def named(kind: Any) -> str:
        return " or ".join(one.__name__ for one in get_args(kind) or (kind,) if one)

    for each in every_operation().values():
        taken = [*each.placeholders, *(["following"] if each.paged else []), *([named(each.body)] if each.body else [])]
        adapter = each.each or each.result
        result = named(adapter._type) if adapter else "None"
        form = "Page of " if each.paged else "all " if each.is_list else "tuple of " if each.each else ""
        yield f"`{each.name}({', '.join(taken)})`", form + result
    yield "`request(method, path, json)`", "JSON of any operation without a name"


def page() -> str:
    models = [one for one in credhook.__all__ if isinstance(getattr(credhook, one), type(BaseModel))]
    requests = [one for one in models if issubclass(getattr(credhook, one), RequestModel)]
    others = [one for one in credhook.__all__ if one not in models]
    names = ["| name | meaning | fields |", "| --- | --- | --- |"]
    parts: list[tuple[str, Iterable[str]]] = [
        ("Names", [*names, *(f"| `{one}` | {summary(one)} | {fields(one)} |" for one in others)]),
        ("Calls of `context.api`", (f"- {call}: {result}" for call, result in calls())),
        ("Request models", (f"- `{one}`: {fields(one)}" for one in requests)),
        ("Results", (f"- `{one}`: {fields(one)}" for one in models if one not in requests)),
    ]
    return TOP + "".join(f"\n## {title}\n\n" + "\n".join(rows) + "\n" for title, rows in parts)


if __name__ == "__main__":
    sys.stdout.write(page())
