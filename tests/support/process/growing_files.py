"""Files that other processes are still writing."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Return the finished lines; none if there is no file. The last line may be half written."""
    if not path.exists():
        return []
    return whole(path.read_text(errors="replace")).splitlines()


def whole(text: str) -> str:
    """Return the text without a last line whose end has not been written yet."""
    return text[: text.rfind("\n") + 1]
