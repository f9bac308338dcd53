"""What all sections of a recipe have in common: strict types, no changes afterwards, and room for other readers' keys."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict


@dataclass(frozen=True)
class Follows:
    """Marks a field whose default is another key's value; `expression` is the interpolation that a recipe would write."""

    expression: str


def _nothing_if_null(value: Any) -> Any:
    """NeMo RL's recipes may write `null` for a section that they do not use, such as `async_grpo`."""
    return {} if value is None else value


NULL_IS_EMPTY = BeforeValidator(_nothing_if_null)
"""For a section that a recipe may write as `null`."""


class Section(BaseModel):
    """A section of a recipe: the fields are its keys."""

    # Other keys of a section belong to trainers and other backends; the loader looks for misspelt ones among them.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    keys_of_others: ClassVar[frozenset[str]] = frozenset()
    """Keys of other readers that nearly spell one of this section and are no misspelling of it."""
