"""One thing that is wrong with a file, with the place to mend it; errors and lint reports are lists of these."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "fixed"]


@dataclass(frozen=True)
class Finding:
    """A line of an error or of a lint report.

    `path` is the file as it was reached, or `command line`. `line` and `column` count from 1 and are `None` where nobody
    wrote the key down. `key` is dotted. `code` names the kind of finding in one word, for programs that read reports.
    """

    path: str
    line: int | None
    column: int | None
    severity: Severity
    key: str | None
    message: str
    code: str

    @property
    def place(self) -> str:
        """`FILE`, `FILE:LINE` or `FILE:LINE:COLUMN`."""
        return ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.message}" if self.key else f"{self.place}: {self.message}"


def file_error(
    path: str, message: str, code: str, *, line: int | None = None, column: int | None = None, key: str | None = None
) -> Finding:
    """An error that stands for a whole file, or for a place of it that has no meaning as YAML."""
    return Finding(path, line, column, "error", key, message, code)
