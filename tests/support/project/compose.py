"""The services of deploy/compose.yaml as processes of this machine: their commands, variables and health checks."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from credhook.sandbox.local.environment import find_server
from support.checkout import ROOT
from support.process.serving import Executed

DEPLOY = ROOT / "deploy"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
PASSWORD = "of-nobody-1_2"
USER = "credhook"
#: `redis-cli -p PORT --user USER COMMAND` of the image. The package of the server has none.
CLIENT = """
import os, sys, redis

_, _, port, _, user, command = sys.argv
client = redis.Redis(port=int(port), username=user, password=os.environ["REDISCLI_AUTH"])
print("PONG" if client.execute_command(command) else "")
"""


class Container(Executed):
    """A service. `places` says what stands here for a container's files, addresses and ports."""

    def __init__(
        self, folder: Path, name: str, places: dict[str, str], filled_in: Mapping[str, str] = {}, *, log: str = ""
    ) -> None:
        """`filled_in`: what an operator writes into its file of variables. The rest stays as in the example."""
        text = json.dumps(SERVICES[name])
        for place, ours in places.items():
            assert place in text, place
            text = text.replace(place, ours)
        text = re.sub(r"\$\{REDIS_PASSWORD:\?[^}]+\}", PASSWORD, text).replace("$$", "$")
        self.service: dict[str, Any] = json.loads(text)
        example = (DEPLOY / f"{self.service['env_file']}.example").read_text() if "env_file" in self.service else ""
        variables = dict(re.findall(r"^([A-Z_]+)=(.*)$", example, re.MULTILINE))
        assert filled_in.keys() <= variables.keys()
        variables |= dict(filled_in) | self.service.get("environment", {})
        variables["PATH"] = f"{folder}:{os.environ['PATH']}"
        super().__init__(folder / f"{log or name}.log", *self.service["command"], environment=variables)

    def is_healthy(self) -> bool:
        """Run the health check once."""
        kind, *words = self.service["healthcheck"]["test"]
        command = words if kind == "CMD" else ["sh", "-c", *words]
        return subprocess.run(command, check=False, env=self.environment, capture_output=True).returncode == 0


def store(folder: Path, port: int) -> Container:
    """Start the Redis, with a server of this machine."""
    text = (DEPLOY / "redis.conf").read_text().replace("/data", str(folder))
    (folder / "redis.conf").write_text(f"{text}\nport {port}\nbind 127.0.0.1\n")
    (folder / "redis-server").symlink_to(find_server())
    (folder / "redis-cli").write_text(f"#!{sys.executable}\n{CLIENT}")
    (folder / "redis-cli").chmod(0o755)
    return Container(
        folder, "redis", {"/usr/local/etc/redis": str(folder), "redis-cli --user": f"redis-cli -p {port} --user"}
    )
