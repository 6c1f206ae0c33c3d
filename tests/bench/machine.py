"""What the figures were measured on, and how."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

from bench import cores
from bench.environments import ROOT
from bench.load import has_wrk
from bench.plan import Plan

from credhook.sandbox.local.local_redis import find_server


def here() -> dict[str, str]:
    """What any figures depend on: a name and a line for each thing, for people."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores of {_processor()}, {memory:.0f} GiB, {platform.system()}",
        "neighbours": f"load average {os.getloadavg()[0]:.1f} before the start; above 0.5, others are in the figures",
        "cores": cores.described(),
    }


def setting(plan: Plan) -> dict[str, str]:
    """What the receiver's figures depend on."""
    generator = (
        "wrk" if has_wrk() else "our own generator, since wrk is missing: which is slower than the fastest servers"
    )
    return here() | {
        "software": f"Python {platform.python_version()}, uvicorn {version('uvicorn')}, {redis_version()}, "
        f"{node_version()}",
        "load": f"{generator}, {plan.connections} connections, {plan.seconds} s; median of {plan.rounds} rounds",
        "redis": "an empty one for every run, appendfsync always (credhook standard and whoever says so: everysec), "
        "no rewrites meanwhile",
        "logs": "to a file: credhook's at its default level, which names every event; the others' at warning",
    }


def _commit() -> str:
    """Of what is measured, and whether there is more than it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=, and changes beside it"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def redis_version() -> str:
    """Which server the runs run on."""
    said = subprocess.run([find_server(), "--version"], capture_output=True, text=True, check=False).stdout
    return "Redis " + next((word[2:] for word in said.split() if word.startswith("v=")), "of unknown version")


def node_version() -> str:
    """Which Node some of the peers run on, if there is one."""
    if shutil.which("node") is None:
        return "no Node"
    return "Node " + subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
