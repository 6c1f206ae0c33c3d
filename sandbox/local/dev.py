"""`credhook dev`: Redis, the platform, receiver and worker around the author's handlers, from any folder.

A session shows events, runs commands for keys, and restarts the worker when a file is saved.
"""

import json
import logging
import os
import re
import select
import shlex
import signal
import sys
import termios
import tomllib
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

import click
from watchfiles import Change, PythonFilter, watch

from credhook.sandbox.local.environment import (
    CREDHOOK,
    LOGS_ONLY,
    STOP_SECONDS,
    CannotStart,
    LocalEnvironment,
    Stopped,
    catch_signals,
    local_environment,
)

REPLAY, FORGET, QUIT, HELP = "r", "e", "q", "?"

#: Key → the arguments of `credhook trigger`.
TRIGGERS: Final[dict[str, str]] = {
    "i": "issuance.completed",
    "o": "issuance.offered",
    "f": "issuance.failed",
    "d": "verification.data",
    "x": "verification.data --no-is-valid",
    "v": "verification.verified",
    "n": "verification.failed",
}

_FAILED: Final = "--state dead --state data_gone --state waiting"
REPLAY_COMMAND: Final = f"events replay {_FAILED} --now"
FORGET_COMMAND: Final = f"events erase {_FAILED} --yes"

#: The session's worker logs errors with messages. A handler that runs when its file is saved gets five seconds. Then
#: the event is handed back, and the new code gets it. Leases are not renewed while a debugger stops a coroutine.
WORKER_SETTINGS: Final = {
    "CREDHOOK_DEV": "1",
    "CREDHOOK_LOG": "json",
    "CREDHOOK_GRACE": "5",
    "CREDHOOK_LEASE": "300",
}

#: Log event → the text that is shown for it. Any other log event is shown by its name.
_PHRASES: Final = {
    "worker_started": "ready",
    "plugins_started": "ready",
    "handler_failed": "failed",
    "handler_blocks": "blocks the event loop",
    "handler_slow": "still runs",
    "retry_chosen": "chose to run again",
    "turns_awaited": "events wait for their turn",
    "fetch_failed": "the details cannot be fetched",
    "event_done": "done",
    "event_waiting": "waiting",
    "event_dead": "dead",
    "event_data_gone": "data_gone",
    "event_handed_back": "handed back",
    "event_unhandled": "no handler for it",
    "lease_lost": "lost to another worker",
}
#: Log events that do not help an author.
_HIDDEN_EVENTS: Final = {"worker_draining", "worker_stopped"}
#: Fields that follow a text of `_PHRASES` as NAME=VALUE. Other lines show all fields that are not in `_HIDDEN_FIELDS`.
_PHRASE_FIELDS: Final = (
    *("handlers", "starting", "reason", "events", "seconds", "ms", "skipped", "lacking", "final", "error"),
)
#: Fields that are shown elsewhere or not at all.
_HIDDEN_FIELDS: Final = {
    *("event", "level", "logger", "timestamp", "webhook_id", "event_type", "resource_id", "attempt", "handler"),
    *("message", "frames", "members", "at", "exc_info", "hint"),
}

#: The entry point group under which a package offers its handlers.
_GROUP: Final = "credhook.handlers"


@contextmanager
def keyboard() -> Iterator[Callable[[], str] | None]:
    """Read keys one by one and do not show them. Yield None unless this process is in a terminal's foreground.

    The function returns the next key, empty if none has been pressed, `QUIT` if the terminal is closed.
    """

    def pressed() -> str:
        try:
            if not select.select([sys.stdin], [], [], 0)[0]:
                return ""
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


def folders_below(folders: Sequence[Path]) -> Iterator[str]:
    """Yield these folders and the folders below, but neither links nor folders such as `.venv`."""
    for top in folders:
        top.stat()  # `walk` would pass over a folder that is missing.
        for folder, names, _ in os.walk(top):
            names[:] = [name for name in names if name not in PythonFilter.ignore_dirs]
            yield folder


def saved_files(folders: Sequence[Path]) -> Iterator[list[str]]:
    """Yield the names of the Python files saved in folders, every 50 ms or when there are any, until a signal.

    Tests are left out, since a worker does not load them. Raise `CannotStart` if watching fails.
    """
    logging.getLogger("watchfiles").setLevel(logging.ERROR)  # It counts changes, and warns of signals.
    is_python = PythonFilter()
    is_test = re.compile(r"(test_.*|.*_test|conftest)\.py").fullmatch
    is_over = False
    try:
        while not is_over:
            is_over = True  # Unless a folder is added, `watch` ends after a signal.
            # Filtered below, since `watch` with a filter would not yield while other files change, such as our logs.
            for changes in watch(
                *folders_below(folders),
                watch_filter=None,
                debounce=400,  # Changes within these milliseconds count as one save.
                rust_timeout=50,
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=False,  # It would follow links, and one may lead to the whole disk.
            ):
                names = {Path(path).name for change, path in changes if is_python(change, path)}
                yield sorted(name for name in names if not is_test(name))
                if any(change is Change.added and Path(path).is_dir() for change, path in changes):
                    is_over = False
                    break
    except (OSError, RuntimeError) as error:
        raise CannotStart(f"files cannot be watched: {error}; WATCHFILES_FORCE_POLLING=1 may help") from error


def worker_lines(text: str) -> list[str]:
    """Return the lines to show for a line of a worker's log: the event and its outcome, errors below."""
    line = _parsed(text)
    if line is None:
        return [text] if text.strip() else []
    return [] if line["event"] in _HIDDEN_EVENTS else _shown(line)


def warnings_of(text: str) -> list[str]:
    """Return the lines to show for a log line of another process: only warnings and errors."""
    line = _parsed(text)
    return _shown(line) if line and line["level"] in {"warning", "error", "critical"} else []


def _parsed(text: str) -> dict[str, Any] | None:
    """Return a log line, or None if the text is something else."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"event", "level", "timestamp"} <= line.keys() else None


def _shown(line: dict[str, Any]) -> list[str]:
    """Return one line, and below it the error's message, its places in the author's code and the hint."""
    phrase = _PHRASES.get(line["event"])
    if phrase == "ready" and line.get("starting"):
        phrase = "starting"
    names = [name for name in line if (name in _PHRASE_FIELDS and line[name] if phrase else name not in _HIDDEN_FIELDS)]
    parts = [
        f"{datetime.fromisoformat(line['timestamp']).astimezone():%H:%M:%S}",
        line.get("event_type", "").removeprefix("openid4vc."),
        line.get("resource_id", ""),
        line.get("handler", ""),
        phrase or line["event"],
        *(f"{name}={', '.join(map(str, v)) if isinstance(v := line[name], list) else v}" for name in names),
    ]
    at = line.get("at")
    below = [line.get("message"), *(line.get("frames") or (at if isinstance(at, list) else [at])), line.get("hint")]
    texts = [part for text in below if text for part in str(text).split("\n")]
    return [*map(_plain, ["  ".join(filter(None, parts)), *(f"          {text}" for text in texts)])]


def _plain(text: str) -> str:
    """Escape characters that a terminal would obey. Claims and ids of strangers may hold such characters."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


@dataclass
class DevSession:
    """Runs one worker of `modules` at a time and the loop around it.

    `saves` is from `saved_files`, `key` from `keyboard`. `settings`: the line with which a shell takes the settings.
    """

    local: LocalEnvironment
    modules: Sequence[str]
    saves: Iterator[list[str]]
    key: Callable[[], str] | None
    settings: str
    #: Process → the number of bytes of its log that have been shown.
    _shown: dict[str, int] = field(default_factory=lambda: {"receiver": 0})

    def start(self) -> None:
        """Start the worker. What it logs is shown once `run` is called."""
        next(self.saves, None)  # The watch begins before the worker reads any file.
        self._start_worker()

    def run(self) -> None:
        """Run until `q` is pressed or a signal comes. Raise `CannotStart` if the receiver or the sandbox ends."""
        try:
            for files in self.saves:
                if not self.run_key(self.key() if self.key else ""):
                    break
                self.local.check(but="worker")
                self.show_logs()
                if files:
                    click.echo(f"{', '.join(files)} saved, the worker restarts")
                    self._stop_worker()
                    self._start_worker()
                elif (code := self.local.exit_code("worker")) is not None:
                    self.show_logs()
                    click.echo(f"the worker has ended with {code}; it starts again when a file is saved")
        finally:
            self._stop_worker()

    def _start_worker(self) -> None:
        settings = WORKER_SETTINGS | {"CREDHOOK_HANDLERS": ",".join(self.modules) or LOGS_ONLY}
        self.local.start("worker", *CREDHOOK, "worker", **settings)
        self._shown["worker"] = 0

    def _stop_worker(self) -> None:
        """Let the worker finish its running handlers, and show its last lines."""
        self.local.stop("worker")
        self.show_logs()

    def show_logs(self) -> None:
        """Print the lines that the receiver and the worker have logged since the last call."""
        for name, shown in self._shown.items():
            try:
                with self.local.logs[name].open("rb") as log:
                    log.seek(shown)
                    whole, end, _ = log.read().rpartition(b"\n")
            except FileNotFoundError:  # The folder was deleted, which `check` reports.
                continue
            self._shown[name] += len(whole + end)
            lines_of = worker_lines if name == "worker" else warnings_of
            for text in whole.decode(errors="replace").split("\n"):
                for line in lines_of(text):
                    click.echo(line)

    def show_keys(self) -> None:
        """List the keys, or without a terminal the commands that do the same."""
        url = self.local.sandbox_url
        click.echo(f"settings   {self.settings}")
        if not self.key:
            if url:
                click.echo(f"try        credhook trigger issuance.completed --url {url}")
            click.echo(f"replay     credhook {REPLAY_COMMAND}")
            return
        keys = (TRIGGERS if url else {}) | {
            REPLAY: "replay failed events",
            FORGET: "forget failed events",
            QUIT: "quit",
            HELP: "show the settings and the keys",
        }
        for key, does in keys.items():
            click.echo(f"  {key}  {does}")

    def run_key(self, key: str) -> bool:
        """Run the command of a key. Return False for `QUIT`."""
        command = {REPLAY: REPLAY_COMMAND, FORGET: FORGET_COMMAND}.get(key, "")
        if key in TRIGGERS and self.local.sandbox_url:
            command = f"trigger {TRIGGERS[key]}"
        try:
            if command:
                click.echo(self.local.run(*CREDHOOK, *command.split()), nl=False)
            elif key == HELP:
                self.show_keys()
        except CannotStart as error:
            click.echo(f"this did not work: {error}")
        return key != QUIT


def debug_worker(local: LocalEnvironment, modules: Sequence[str]) -> None:
    """Run one worker with this terminal, for `breakpoint()`, until it ends."""
    settings = WORKER_SETTINGS | {"CREDHOOK_HANDLERS": ",".join(modules) or LOGS_ONLY, "CREDHOOK_LOG": "console"}
    worker = Popen((*CREDHOOK, "worker", "--debug"), env=local.environment | settings)  # noqa: S603  Our own program.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the worker as well, which ends in order.
    try:
        worker.wait()
    finally:
        worker.terminate()
        try:
            worker.wait(STOP_SECONDS)
        except TimeoutExpired:  # The debugger holds its event loop.
            worker.kill()
            worker.wait()


@click.command()
@click.argument("modules", metavar="[MODULE]...", nargs=-1)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port of the receiver. Default: a free port.")
@click.option(
    "--to-platform",
    "public_url",
    metavar="URL",
    help="Use the platform that the environment names, without the sandbox. Register this https URL, which leads to "
    "the receiver, and delete it at the end. The receiver then speaks HTTP, behind a tunnel that ends TLS.",
)
@click.option(
    "--debug", is_flag=True, help="Give the terminal to one worker, for breakpoint(). Saved files do not restart it."
)
def dev(*, modules: tuple[str, ...], port: int, public_url: str | None, debug: bool) -> None:
    """Run your handlers with everything around them, show the result of each event, reload them when saved.

    MODULE holds a `Handlers`, as in CREDHOOK_HANDLERS. Without MODULE, dev takes the handlers of pyproject.toml or
    handlers.py in the current folder. It starts a Redis (unless REDIS_URL names one), the sandbox, the receiver on
    HTTPS, and a worker. Ctrl-C stops them all, and nothing is left.
    """
    if debug and not sys.stdin.isatty():
        raise click.UsageError("--debug needs a terminal")
    names, source = choose(modules, os.environ, Path.cwd())
    catch_signals()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CREDHOOK_TLS_")}
    if public_url:
        environ["CREDHOOK_PUBLIC_URL"] = public_url
    with suppress(Stopped), ExitStack() as stack:  # It stops the worker first, Redis last.
        local = stack.enter_context(local_environment(environ, sandbox=None if public_url else (), port=port))
        # Two processes cannot listen at CREDHOOK_ADMIN. The worker shows the author's own metrics there.
        local.start("receiver", *CREDHOOK, "receiver", CREDHOOK_LOG="json", CREDHOOK_ADMIN="")
        # Without modules there is nothing to watch. The session's own folder holds no Python file.
        saves = saved_files(folders(names, Path.cwd()) or [local.folder])
        settings = local.folder / "env"
        take_settings = f"set -a; . ./{settings.relative_to(Path.cwd())}; set +a"
        key = None if debug else stack.enter_context(keyboard())
        session = DevSession(local, names, saves, key, take_settings)
        if not debug:
            session.start()  # Both processes start at the same time.
        if public_url is None:
            local.run(*CREDHOOK, "endpoints", "apply", "--all")
        local.wait_for("receiver", f"{local.receiver_url}/readyz")
        if public_url:
            stack.enter_context(registered(local, public_url))
        if names:
            restarts = "not restarted when saved" if debug else "restarted when saved"
            click.echo(f"handlers   {', '.join(names)}, named by {source}; {restarts}")
        else:
            click.echo("handlers   none named: a built-in handler logs each event. Name yours: credhook dev accounts")
        prefixes = "CREDHOOK_", "REDIS_"
        ours = {name: value for name, value in local.environment.items() if name.startswith(prefixes)}
        ours |= {"CREDHOOK_HANDLERS": ",".join(names) or LOGS_ONLY, "CREDHOOK_DEV": "1"}
        settings.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in ours.items()))
        click.echo(f"receiver   {local.receiver_url}/webhooks")
        click.echo(f"platform   {local.sandbox_url or f'delivers to {public_url} until you stop'}")
        if admin := environ.get("CREDHOOK_ADMIN"):
            click.echo(f"admin      http://{admin}/metrics, of the worker")
        click.echo("stop       Ctrl-C")
        session.show_keys()
        if debug:
            debug_worker(local, names)
        else:
            session.run()
    click.echo("stopped; nothing is left running")


@contextmanager
def registered(local: LocalEnvironment, url: str) -> Iterator[None]:
    """Register a URL with the platform until the end. Raise `CannotStart` if it refuses, or has the URL already."""

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


def folders(names: Sequence[str], current_folder: Path) -> list[Path]:
    """Return the paths to watch for these modules: the current folder, and modules and packages elsewhere."""
    paths = [current_folder] if names else []
    for name in names:
        if spec := PathFinder.find_spec(re.split(r"[.:]", name)[0], [*sys.path, str(current_folder)]):
            paths += map(Path, spec.submodule_search_locations or filter(None, [spec.origin]))
    return [path for path in dict.fromkeys(paths) if path == current_folder or not path.is_relative_to(current_folder)]


def choose(named: Sequence[str], environ: Mapping[str, str], current_folder: Path) -> tuple[tuple[str, ...], str]:
    """Return the named modules, or else the first that the environment, the folder or the installation offers.

    The second result is the place that named them. Without any module, events are only logged.

    Raises:
        click.BadParameter: A name is not the name of a module.
        CannotStart: pyproject.toml cannot be read.
    """
    for name in named:
        if name.endswith(".py") or not re.fullmatch(r"\w+(\.\w+)*(:\w+(\.\w+)*)?", name):
            raise click.BadParameter(f"{name!r} is not a module; name it as in an import", param_hint="MODULE")
    variable = environ.get("CREDHOOK_HANDLERS", "").split(",")
    offers = (
        (tuple(named), "the command line"),
        (tuple(filter(None, map(str.strip, variable))), "CREDHOOK_HANDLERS"),
        (_in_project(current_folder / "pyproject.toml"), "pyproject.toml"),
        (("handlers",) if (current_folder / "handlers.py").is_file() else (), "handlers.py"),
        (tuple(entry.value for entry in entry_points(group=_GROUP)), "an installed package"),
    )
    return next((offer for offer in offers if offer[0]), ((), ""))


def _in_project(path: Path) -> tuple[str, ...]:
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(project["project"]["entry-points"][_GROUP].values())
    except (FileNotFoundError, KeyError):
        return ()
    except (OSError, ValueError, TypeError, AttributeError) as error:  # A value of another type, in place of a table.
        raise CannotStart(f"pyproject.toml cannot be read: {error}") from error
