"""What was measured as the work grew, as it is kept in a file. Standard library only, as the plot wants it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.work.results import Work


@dataclass(slots=True)
class Growth:
    """Everything, one entry per round.

    Attributes:
        setting: what it was measured on, and how, for people.
        titles: of the axes, by name.
        axes: by axis, then by point, from little to much.
    """

    setting: dict[str, str]
    titles: dict[str, str]
    axes: dict[str, dict[str, list[Work]]] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Keep them."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Growth":
        """What was kept."""
        kept: dict[str, Any] = json.loads(path.read_text())
        kept["axes"] = {
            axis: {point: [Work(**one) for one in rounds] for point, rounds in points.items()}
            for axis, points in kept["axes"].items()
        }
        return cls(**kept)
