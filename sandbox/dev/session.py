"""A session of `credhook dev`, from the first line on the screen until the author has enough."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console
from rich.text import Text

from credhook.sandbox.dev.keys import HELP, QUIT, REPLAY, TRIGGERS, Keyboard, Trigger
from credhook.sandbox.dev.lines import Lines, trouble
from credhook.sandbox.dev.saves import Saves
from credhook.sandbox.dev.tail import Tail
from credhook.sandbox.dev.worker import Worker
from credhook.sandbox.local.environment import CREDHOOK, CannotStart, LocalEnvironment

#: Seconds between two looks at what has happened.
_LOOK: Final = 0.05

#: Puts back what has failed: due at once, whatever it waits for.
REPLAY_COMMAND: Final = (
    *("events", "replay", "--state", "dead", "--state", "data_gone", "--state", "waiting", "--now"),
)


class Session:
    """Shows what becomes of events, obeys keys, and starts the worker anew when a file is saved."""

    def __init__(
        self, local: LocalEnvironment, worker: Worker, saves: Saves, keyboard: Keyboard, console: Console
    ) -> None:
        self._local = local
        self._worker = worker
        self._saves = saves
        self._keyboard = keyboard
        self._console = console
        self._lines = Lines()
        self._receiver = Tail(local.logs["receiver"])
        #: Whether there is nothing to say about failed events when the worker is ready: it has just begun.
        self._first = True

    def run(self) -> None:
        """Go on until `q` is pressed.

        Raises:
            CannotStart: the receiver or the sandbox has ended.
        """
        self._worker.start()
        while self._obey(self._keyboard.pressed(_LOOK)):
            self._local.check(but="worker")
            self._show(self._worker.lines())
            self._print(line for text in self._receiver.lines() for line in trouble(text))
            if saved := self._saves.taken():
                self._renew(saved)
            elif (code := self._worker.exit_code()) is not None:
                self._show(self._worker.end())
                self._say(f"the worker has ended with {code}; it starts again when a file is saved", "yellow")

    def finish(self) -> None:
        """Let the worker finish what is under way, and show what became of it."""
        self._show(self._worker.end())

    def show_keys(self) -> None:
        """Name every key and what it does; where there is no terminal, the commands that do it."""
        platform = self._local.sandbox_url
        triggers = TRIGGERS if platform else {}
        if self._keyboard.listens:
            keys = [(key, trigger.command) for key, trigger in triggers.items()]
            keys += [(REPLAY, "replay what has failed"), (QUIT, "quit"), (HELP, "show the keys")]
            self._print(Text(f"  {key}  {does}") for key, does in keys)
        else:
            if platform:
                command = TRIGGERS["i"].command
                self._print([Text(f"try        credhook trigger {command} --url {platform}")])
            self._print([Text(f"replay     credhook {' '.join(REPLAY_COMMAND)}")])

    def _show(self, lines: Iterable[str]) -> None:
        for text in lines:
            self._print(self._lines.read(text))
        if self._lines.ready:
            self._lines.ready = False
            if self._lines.failed and not self._first:
                how = f"press {REPLAY}" if self._keyboard.listens else f"credhook {' '.join(REPLAY_COMMAND)}"
                self._say(f"{len(self._lines.failed)} failed before; to replay: {how}", "yellow")
            self._first = False

    def _renew(self, saved: list[Path]) -> None:
        names = ", ".join(dict.fromkeys(path.name for path in saved))
        self._say(f"{names} saved, the worker starts anew", "dim")
        self._show(self._worker.end())
        self._worker.start()

    def _obey(self, key: str) -> bool:
        """Do what a key stands for; whether to go on."""
        if key == REPLAY:
            self._replay()
        elif key == HELP:
            self.show_keys()
        elif key in TRIGGERS and self._local.sandbox_url:
            self._trigger(TRIGGERS[key])
        return key != QUIT

    def _replay(self) -> None:
        try:
            said = self._local.run(*CREDHOOK, *REPLAY_COMMAND)
        except CannotStart as error:
            said = str(error)
        self._print(Text(line) for line in said.splitlines())

    def _trigger(self, trigger: Trigger) -> None:
        try:
            url = f"{self._local.sandbox_url}/sandbox/events"
            httpx.post(url, json=trigger.body, trust_env=False, timeout=10).raise_for_status()
        except httpx.HTTPError as error:
            self._say(f"the sandbox did not do it: {type(error).__name__}", "red")

    def _say(self, text: str, style: str) -> None:
        self._print([Text(text, style)])

    def _print(self, lines: Iterable[Text]) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True, highlight=False)
