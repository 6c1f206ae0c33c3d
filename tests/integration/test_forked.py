"""What is forked is as good as what is started: the same program finds the same around it, and ends the same."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_process import SPARE, Forked
from harness import Harness
from serving import children, running
from waiting import until

START = [pytest.param(subprocess.Popen, id="started"), pytest.param(Forked, id="forked")]

#: Says all that a process is given, and what it has besides.
LOOKS_AROUND = """
import json, os, resource, signal, sys
numbers = [int(name) for name in os.listdir("/proc/self/fd")]
print(json.dumps({
    "arguments": sys.argv,
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "path": [one for one in sys.path if one],
    "main": __name__,
    "parent": os.getppid(),
    "leads": os.getsid(0) == os.getpid(),
    "group": os.getpgid(0) == os.getpgid(os.getppid()),
    "name": open("/proc/self/comm").read(),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "umask": os.umask(0),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "signals": {number: str(signal.getsignal(number)).partition(" at ")[0] for number in range(1, 32)},
    "descriptors": [number for number in sorted(numbers) if os.path.exists(f"/proc/self/fd/{number}")],
    "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering],
    "read": sys.stdin.read(),
}))
"""

#: A way to end → what is printed on standard error, in part, and the exit code.
ENDS = {
    "pass": ("", 0),
    "raise SystemExit": ("", 0),
    "raise SystemExit(7)": ("", 7),
    "raise SystemExit('so long')": ("so long\n", 1),
    "raise ValueError('wrong')": ("ValueError: wrong\n", 1),
    "raise KeyboardInterrupt": ("KeyboardInterrupt\n", -signal.SIGINT),
    "import os; os._exit(9)": ("", 9),
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": ("", -signal.SIGTERM),
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": ("", -signal.SIGKILL),
    "import atexit, sys; atexit.register(sys.stderr.write, 'at last\\n')": ("at last\n", 0),
    "import threading as t, time; t.Thread(target=lambda: (time.sleep(.1), print(1 / 0))).start()": ("by zero\n", 0),
}


def seen(start: Any, arguments: list[str], **options: Any) -> dict[str, Any]:
    """What the program says that is started so."""
    with start(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    ) as process:
        out, _ = process.communicate("given", timeout=60)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out)
    assert found.pop("parent") == os.getpid()
    return found


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("options", [{}, {"start_new_session": True}], ids=["a child", "a session"])
@pytest.mark.parametrize("flags", [[], ["-P"]], ids=["", "-P"])
@pytest.mark.parametrize("what", ["-c", "-m", "script"])
def test_it_finds_around_it_what_a_new_process_finds(
    what: str, flags: list[str], options: dict[str, Any], ignored: bool, tmp_path: Path
) -> None:
    (tmp_path / "looks.py").write_text(LOOKS_AROUND)
    program = {"-c": ["-c", LOOKS_AROUND], "-m": ["-m", "looks"], "script": [str(tmp_path / "looks.py")]}[what]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN) if ignored else signal.getsignal(signal.SIGHUP)
    # Without a LANG, Python would set one of its own.
    environment = {"LANG": "C.UTF-8", "PYTHONPATH": f"elsewhere:{tmp_path}", "MINE": "a=b\n"}
    first, second = socket.socketpair()
    try:
        with first, second:
            new, forked = (
                seen(
                    start, [*flags, *program, "one", "--two"], cwd=tmp_path, env=environment,
                    pass_fds=[second.fileno(), first.fileno()], **options,
                )
                for start in (subprocess.Popen, Forked)
            )  # fmt: skip
            assert {first.fileno(), second.fileno()} <= set(forked["descriptors"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert forked == new
    assert forked["environment"]["MINE"] == "a=b\n"
    assert forked["read"] == "given"


@pytest.mark.parametrize("start", START)
@pytest.mark.parametrize("program", ENDS)
def test_it_ends_as_a_new_process_does(program: str, start: Any) -> None:
    said, code = ENDS[program]
    with start([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        _, err = process.communicate(timeout=60)
    assert (err.endswith(said), process.returncode) == (True, code), err
    assert bool(err) == bool(said)


def test_no_two_have_the_same_chance() -> None:
    program = (
        "import random, uuid, secrets; print(random.random(), uuid.uuid4(), secrets.token_hex())\n"
        "from credhook.receiver.refusals import INSTANCE_KEY; print(INSTANCE_KEY)"
    )
    said = set()
    for _ in range(2):
        with Forked([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            said.update(process.communicate(timeout=60)[0].split())
    assert len(said) == 8


@pytest.mark.parametrize("start", START)
def test_a_supervisors_children_are_its_own_and_die_with_its_group(harness: Harness, start: Any) -> None:
    log = harness.folder / "worker.log"
    with running(log, "worker", "--processes", "2", environment=harness.environment, start=start) as worker:
        until(lambda: worker.text.count('"worker_started"') == 2, what="the workers")
        found = children(worker)
        assert len(found) == 2
        for child in found:
            assert Path(f"/proc/{child}/comm").read_text() != f"{SPARE}\n"
            assert os.getpgid(child) == worker.process.pid
        group = worker.process.pid
        worker.kill()
        until(lambda: not is_there(group), what="the end of all")


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
