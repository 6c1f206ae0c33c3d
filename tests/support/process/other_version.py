"""Another version of credhook: a wheel in an environment of its own, and receivers and workers of any version."""

import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from credhook.sandbox.local.environment import free_port
from support import plain
from support.process.serving import Process
from support.project import release
from support.receiver.signing import SECRET, body, headers
from support.waiting import until
from support.worker.fleet_harness import FleetHarness


def site(environment: Path) -> Path:
    """Return the folder of the packages of an environment."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))


def make_environment(folder: Path, wheel: Path) -> None:
    """Make an environment with the wheel. The dependencies are ours, and nothing of this checkout can be imported."""
    venv.create(folder, with_pip=False, symlinks=True)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site(folder))
    # Python reads no .pth file in a folder that is named here, so the way to the checkout is not taken.
    (site(folder) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))


def installed(source: Path, folder: Path) -> str:
    """Build and install the version whose source is there. Return the path of its Python."""
    release.build(source, folder, "wheel")
    (wheel,) = folder.glob("*.whl")
    make_environment(folder / "environment", wheel)
    return str(folder / "environment/bin/python")


class Member(Process):
    """A receiver or worker with an admin listener. Its log goes on in the file of its name."""

    def __init__(self, rig: FleetHarness, part: str, name: str, python: str = sys.executable, **settings: str) -> None:
        self.port, self.admin = free_port(), f"127.0.0.1:{free_port()}"
        self.url, self._probe = f"http://127.0.0.1:{self.port}/webhooks", f"http://{self.admin}/readyz"
        own = {"PORT": str(self.port), "CREDHOOK_ADMIN": self.admin, "CREDHOOK_WEBHOOK_SECRETS": SECRET}
        command = ["-m", f"credhook.{part}"]
        environment = rig.environment | own | settings
        super().__init__(rig.folder / f"{name}.log", *command, environment=environment, python=python)
        until(lambda: self.answers(self._probe.replace("readyz", "healthz")), what=f"the {part}'s listener")

    def readiness(self) -> tuple[int, str]:
        """Return the status of its probe, and what it says."""
        answer = plain.get(self._probe)
        return answer.status_code, answer.text

    def deliver(self, webhook_id: str) -> int:
        """Post a delivery to this receiver, once. Return the status of the answer."""
        content = body(resource_id=f"iss_{webhook_id}")
        return plain.post(self.url, content=content, headers=headers(webhook_id, content)).status_code
