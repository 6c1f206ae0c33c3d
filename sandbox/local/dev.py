"""`credhook dev`: Redis, the platform, receiver and worker around the author's handlers, from any folder.

A session shows events, obeys keys, and restarts the worker when a file is saved.
"""

import json
import logging
import os
import re
import select
import sys
import termios
import threading
import time
import tomllib
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import click
import httpx
from rich.console import Console
from rich.text import Text
from watchfiles import PythonFilter, watch

from credhook.sandbox.local.dev_log import LogReader, warnings_of
from credhook.sandbox.local.environment import (
    CREDHOOK,
    CannotStart,
    LocalEnvironment,
    NoRedis,
    Stopped,
    started,
    stoppable,
)

POLL_SECONDS: Final = 0.05

#: Changes within this time count as one save.
BURST_MS: Final = 400
#: How often the watching thread looks whether it should end.
WATCH_MS: Final = 500

REPLAY, QUIT, HELP = "r", "q", "?"

#: Key → the event that it triggers, without its prefix, and whether the presented credential is valid.
TRIGGERS: Final[Mapping[str, tuple[str, bool]]] = {
    "i": ("issuance.completed", True),
    "o": ("issuance.offered", True),
    "f": ("issuance.failed", True),
    "d": ("verification.data", True),
    "x": ("verification.data", False),
    "v": ("verification.verified", True),
    "n": ("verification.failed", True),
}

REPLAY_COMMAND: Final = (
    *("events", "replay", "--state", "dead", "--state", "data_gone", "--state", "waiting", "--now"),
)

#: The session's worker logs errors with messages. A handler that runs when its file is saved gets five seconds. Then
#: the event is handed back, and the new code gets it.
WORKER_SETTINGS: Final = {"CREDHOOK_DEV": "1", "CREDHOOK_LOG": "json", "CREDHOOK_GRACE": "5"}

Keyboard = Callable[[float], str]


@contextmanager
def keyboard() -> Iterator[Keyboard | None]:
    """Read keys one by one and do not show them. Yield None unless this process is in a terminal's foreground.

    The function returns the next key, empty if there is none within so many seconds, `QUIT` if the terminal is closed.
    """

    def pressed(within: float) -> str:
        if not select.select([sys.stdin], [], [], within)[0]:
            return ""
        try:
            return os.read(sys.stdin.fileno(), 1).decode(errors="replace") or QUIT
        except OSError:
            return QUIT

    if not (sys.stdin and sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()):
        yield None
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield pressed
    finally:
        with suppress(termios.error):  # The terminal is closed.
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def watched(folders: Sequence[Path]) -> Iterator[Callable[[], list[Path]]]:
    """Watch folders and files, and yield a function that returns the Python files saved since its last call.

    Tests do not count: a worker does not load them. The function raises CannotStart if watching fails.
    """
    queue: SimpleQueue[set[Path] | Exception] = SimpleQueue()
    end = threading.Event()
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # It counts changes.

    def is_test(path: Path) -> bool:
        return path.name == "conftest.py" or path.stem.startswith("test_") or path.stem.endswith("_test")

    def listen() -> None:
        try:
            watching = watch(
                *folders,
                watch_filter=PythonFilter(),
                debounce=BURST_MS,
                rust_timeout=WATCH_MS,
                stop_event=end,
                raise_interrupt=False,
            )
            for changes in watching:
                queue.put({path for path in (Path(name) for _, name in changes) if not is_test(path)})
        except Exception as error:  # noqa: BLE001  The session raises it.
            queue.put(error)

    def take() -> list[Path]:
        files = set[Path]()
        while not queue.empty():
            change = queue.get()
            if isinstance(change, Exception):
                raise CannotStart(f"files cannot be watched: {change}; WATCHFILES_FORCE_POLLING=1 may help")
            files |= change
        return sorted(files)

    if folders:
        threading.Thread(target=listen, daemon=True, name="saves").start()
    try:
        yield take
    finally:
        end.set()


class LogTail:
    """Reads a log from its beginning as it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._partial = b""

    def lines(self) -> list[str]:
        """Return the complete lines that are new."""
        *whole, self._partial = (self._partial + self._file.read()).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def close(self) -> list[str]:
        """Return the rest, an incomplete line included."""
        rest = [*self.lines(), self._partial.decode(errors="replace")]
        self._file.close()
        return rest


class DevSession:
    """Runs one worker at a time and the loop around it."""

    def __init__(
        self,
        local: LocalEnvironment,
        modules: Sequence[str],
        saved: Callable[[], list[Path]],
        keyboard: Keyboard | None,
        console: Console,
    ) -> None:
        self._local = local
        self._settings = WORKER_SETTINGS | {"CREDHOOK_HANDLERS": ",".join(modules)}
        self._saved = saved
        self._keyboard = keyboard
        self._console = console
        self._reader = LogReader()
        self._receiver = LogTail(local.logs["receiver"])
        self._worker: LogTail | None = None
        self._starts = 0

    def run(self) -> None:
        """Run until `q` is pressed. Raise `CannotStart` if the receiver or the sandbox ends."""
        self._start_worker()
        while self._obey(self._next_key()):
            self._local.check(but="worker")
            self._show(self._worker.lines() if self._worker else [])
            self._print(line for text in self._receiver.lines() for line in warnings_of(text))
            if files := self._saved():
                names = ", ".join(dict.fromkeys(path.name for path in files))
                self._say(f"{names} saved, the worker starts anew", "dim")
                self.stop_worker()
                self._start_worker()
            elif (code := self._local.exit_code("worker")) is not None:
                self.stop_worker()
                self._say(f"the worker has ended with {code}; it starts again when a file is saved", "yellow")

    def _next_key(self) -> str:
        if self._keyboard:
            return self._keyboard(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        return ""

    def _start_worker(self) -> None:
        self._starts += 1
        self._reader.ready = False
        self._local.start("worker", *CREDHOOK, "worker", **self._settings)
        self._worker = LogTail(self._local.logs["worker"])

    def stop_worker(self) -> None:
        """Let the worker finish its running handlers, and show its last lines."""
        self._local.stop("worker")
        if self._worker:
            self._show(self._worker.close())
        self._worker = None

    def show_keys(self) -> None:
        """List the keys, or without a terminal the commands that do the same."""
        url = self._local.sandbox_url
        if not self._keyboard:
            commands = [f"try        credhook trigger issuance.completed --url {url}"] if url else []
            self._print(map(Text, [*commands, f"replay     credhook {' '.join(REPLAY_COMMAND)}"]))
            return
        keys = {key: name if valid else f"{name} --no-is-valid" for key, (name, valid) in TRIGGERS.items() if url}
        keys |= {REPLAY: "replay what has failed", QUIT: "quit", HELP: "show the keys"}
        self._print(Text(f"  {key}  {does}") for key, does in keys.items())

    def _show(self, lines: Iterable[str]) -> None:
        was_ready = self._reader.ready
        for text in lines:
            self._print(self._reader.read(text))
        if self._reader.ready and not was_ready and self._reader.failed and self._starts > 1:
            how = f"press {REPLAY}" if self._keyboard else f"credhook {' '.join(REPLAY_COMMAND)}"
            self._say(f"{len(self._reader.failed)} failed before; to replay: {how}", "yellow")

    def _obey(self, key: str) -> bool:
        """Do what a key stands for, and return False for `QUIT`."""
        if key == REPLAY:
            try:
                said = self._local.run(*CREDHOOK, *REPLAY_COMMAND)
            except CannotStart as error:
                said = str(error)
            self._print(map(Text, said.splitlines()))
        elif key == HELP:
            self.show_keys()
        elif key in TRIGGERS and self._local.sandbox_url:
            self._trigger(*TRIGGERS[key])
        return key != QUIT

    def _trigger(self, name: str, valid: bool) -> None:
        body = {"eventType": f"openid4vc.{name}"} | ({} if valid else {"isValid": False})
        try:
            url = f"{self._local.sandbox_url}/sandbox/events"
            httpx.post(url, json=body, trust_env=False, timeout=10).raise_for_status()
        except httpx.HTTPError as error:
            self._say(f"the sandbox did not do it: {type(error).__name__}", "red")

    def _say(self, text: str, style: str) -> None:
        self._print([Text(text, style)])

    def _print(self, lines: Iterable[Text]) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True, highlight=False)


#: The entry point group under which a package offers its handlers.
_GROUP: Final = "credhook.handlers"


@click.command()
@click.argument("modules", metavar="[MODULE]...", nargs=-1)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="The receiver's. Default: a free one.")
@click.option(
    "--to-platform",
    "public_url",
    metavar="URL",
    help="Leave the sandbox out: register this https URL, which leads to the receiver, with the platform that the "
    "environment names, and delete it at the end. The receiver then speaks HTTP, for a tunnel that brings TLS.",
)
def dev(*, modules: tuple[str, ...], port: int, public_url: str | None) -> None:
    """Run your handlers with everything around them, show the result of each event, restart them when saved.

    MODULE holds a `Handlers`, as in CREDHOOK_HANDLERS. Without one, dev takes the handlers of pyproject.toml or
    handlers.py in the current folder. Starts a Redis (unless REDIS_URL names one), the sandbox, the receiver on HTTPS,
    and a worker. Ctrl-C stops them; nothing is left.
    """
    console = Console(width=None if sys.stdout.isatty() else 200)
    here = Path.cwd()
    try:
        chosen = choose(modules, os.environ, here)
        with stoppable():
            _run(chosen, here, port, public_url, console)
    except (NoRedis, CannotStart) as error:
        raise click.ClickException(str(error)) from error
    except Stopped:
        pass
    console.print("stopped; nothing is left running")


def _run(modules: "HandlerModules", here: Path, port: int, public_url: str | None, console: Console) -> None:
    """Start everything, and stop it in the reverse order: the worker first, Redis last."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CREDHOOK_TLS_")}
    own |= {"CREDHOOK_PUBLIC_URL": public_url} if public_url else {}
    with ExitStack() as stack:
        saves = stack.enter_context(watched(modules.folders(here)))
        options = None if public_url else ()
        local = stack.enter_context(started(own_handlers=True, sandbox=options, port=port, environ=own))
        local.start("receiver", *CREDHOOK, "receiver", CREDHOOK_LOG="json")
        if public_url is None:
            local.run(*CREDHOOK, "endpoints", "apply", "--all")  # While the receiver starts.
        local.wait_for("receiver", f"{local.receiver_url}/readyz")
        if public_url:
            stack.enter_context(_registered(local, public_url))
        keys = stack.enter_context(keyboard())
        session = DevSession(local, modules.names, saves, keys, console)
        stack.callback(session.stop_worker)
        _introduce(local, modules, public_url, console)
        session.show_keys()
        session.run()


def _introduce(local: LocalEnvironment, modules: "HandlerModules", public_url: str | None, console: Console) -> None:
    if modules.names:
        lines = [f"handlers   {', '.join(modules.names)}, named by {modules.source}; saved, they start anew"]
    else:
        lines = ["handlers   none are named: a built-in one logs each event. Name yours: credhook dev accounts"]
    lines.append(f"receiver   {local.receiver_url}/webhooks")
    lines.append(f"platform   {local.sandbox_url or f'delivers to {public_url} until you stop'}")
    lines.append(f"settings   set -a; . {local.write_environment()}; set +a")
    lines.append("stop       Ctrl-C")
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _registered(local: LocalEnvironment, url: str) -> Iterator[None]:
    """Register a URL with the platform, and delete the registration at the end.

    Raises:
        CannotStart: The platform refuses, or the URL is registered already.
    """

    def registrations() -> list[str]:
        listed = json.loads(local.run(*CREDHOOK, "api", "endpoints", "list"))
        return [endpoint["id"] for endpoint in listed if endpoint["url"] == url]

    if ids := registrations():
        raise CannotStart(f"the platform delivers to this URL already: `credhook endpoints delete {ids[0]}` ends that")
    try:
        local.run(*CREDHOOK, "endpoints", "apply", "--all")
        yield
    finally:
        for endpoint_id in registrations():
            local.run(*CREDHOOK, "endpoints", "delete", endpoint_id)


@dataclass(frozen=True)
class HandlerModules:
    """The author's modules, as `CREDHOOK_HANDLERS` takes them, and their source. Without any, events are logged."""

    names: tuple[str, ...]
    source: str

    def folders(self, here: Path) -> tuple[Path, ...]:
        """Return what to watch: the current folder, and modules and packages that are elsewhere."""
        found: list[Path] = []
        for name in self.names:
            spec = PathFinder.find_spec(re.split(r"[.:]", name)[0], [*sys.path, str(here)])
            if spec is not None:
                found += map(Path, spec.submodule_search_locations or filter(None, [spec.origin]))
        elsewhere = (place for place in dict.fromkeys(found) if not place.is_relative_to(here))
        return (here, *elsewhere) if self.names else ()


def choose(named: Sequence[str], environ: Mapping[str, str], here: Path) -> HandlerModules:
    """Return the named modules, or else the first that the environment, the folder or the installation offers.

    Raises:
        click.BadParameter: A name is not that of a module.
        CannotStart: pyproject.toml cannot be read.
    """
    for name in named:
        if name.endswith(".py") or not re.fullmatch(r"\w+(\.\w+)*(:\w+(\.\w+)*)?", name):
            raise click.BadParameter(f"{name!r} is no module; name it as in an import", param_hint="MODULE")
    for names, source in _offers(named, environ, here):
        if names:
            return HandlerModules(names, source)
    return HandlerModules((), "")


def _offers(named: Sequence[str], environ: Mapping[str, str], here: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    yield tuple(named), "the command line"
    variable = environ.get("CREDHOOK_HANDLERS", "")
    yield tuple(part.strip() for part in variable.split(",") if part.strip()), "CREDHOOK_HANDLERS"
    yield _in_project(here / "pyproject.toml"), "pyproject.toml"
    yield ("handlers",) if (here / "handlers.py").is_file() else (), "handlers.py"
    yield tuple(entry.value for entry in entry_points(group=_GROUP)), "an installed package"


def _in_project(path: Path) -> tuple[str, ...]:
    try:
        project: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(map(str, project["project"]["entry-points"][_GROUP].values()))
    except (FileNotFoundError, KeyError):
        return ()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CannotStart(f"pyproject.toml cannot be read: {error}") from error
