"""Files that other processes are still writing."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """The lines that are there to their end, none before the file is: a reader meets half of what is being written."""
    if not path.exists():
        return []
    return whole(path.read_text(errors="replace")).splitlines()


def whole(text: str) -> str:
    """What has been read, less a line whose end has not been written yet."""
    return text[: text.rfind("\n") + 1]
