"""The one exception that reading a recipe raises, and the search for the name that was probably meant."""

import difflib
import functools
from collections.abc import Iterable, Sequence

from reference_impl.config.findings import Finding

# How alike an unknown key must be to be named as a guess, and how alike to be refused in a section whose other keys belong
# to someone else. At 0.8 no key of NeMo RL's own recipes is taken for a misspelling of ours.
LIKELY = 0.7
NEAR_MISS = 0.8


class ConfigError(ValueError):
    """A recipe that cannot be used, said in one line per problem.

    A line names the file and the line in it (or `command line`), the dotted key, the value, what was expected and, where
    there is one, the nearest valid name. `findings` holds the same lines taken apart, where they are about files.
    """

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> "ConfigError":
        """An error with one line for each finding."""
        return cls("\n".join(map(str, findings)), findings)


def nearest(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The candidate that `name` most probably meant, or `None` if none is alike.

    Case and hyphens do not count. Swapped letters find their word at any length (`gpro` is `grpo`); otherwise the ratio of
    `difflib.SequenceMatcher` decides, and `cutoff` (0 to 1) is the smallest ratio that counts as alike.
    """
    return _nearest(name, tuple(candidates), cutoff)


@functools.lru_cache(maxsize=4096)  # a hundred recipes ask about the same few names
def _nearest(name: str, candidates: tuple[str, ...], cutoff: float) -> str | None:
    wanted = name.lower().replace("-", "_")
    known = {candidate.lower(): candidate for candidate in candidates}
    for lowered, candidate in known.items():
        if sorted(lowered) == sorted(wanted):
            return candidate
    alike = difflib.get_close_matches(wanted, known, n=1, cutoff=cutoff)
    return known[alike[0]] if alike else None
