"""What has been added to a log."""

from pathlib import Path


class Tail:
    """Reads a file from its beginning as it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._begun = b""

    def lines(self) -> list[str]:
        """The lines that are whole and have not been read yet."""
        *whole, self._begun = (self._begun + self._file.read()).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def close(self) -> list[str]:
        """Read no more of it; what was still to be read."""
        rest = [*self.lines(), self._begun.decode(errors="replace")]
        self._file.close()
        return [line for line in rest if line]
