"""`BatchedDataDict`: a batch as a dictionary of columns, one row a sequence."""

from collections import UserDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class BatchedDataDict(UserDict):
    """A dictionary whose values are tensors [batch, ...] or lists of length batch.

    The name and the role are NeMo RL's; only what the contract needs is here.
    """

    @property
    def size(self) -> int:
        """Rows in the batch; 0 for an empty dictionary. Columns of different lengths are a `ValueError`."""
        lengths = {key: len(value) for key, value in self.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns have different lengths: {lengths}")
        return next(iter(lengths.values()), 0)

    def rows(self, indices: Sequence[int]) -> "BatchedDataDict":
        """The chosen rows, in the order given."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return BatchedDataDict(
            {
                key: value[chosen.to(value.device)] if isinstance(value, Tensor) else [value[i] for i in indices]
                for key, value in self.items()
            }
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


def right_padded(sequences: Sequence[Sequence[float]], pad_value: float, dtype: torch.dtype) -> Tensor:
    """Stack sequences of different lengths into [batch, longest], padded on the right."""
    longest = max(map(len, sequences), default=0)
    out = torch.full((len(sequences), longest), pad_value, dtype=dtype)
    for row, sequence in enumerate(sequences):
        out[row, : len(sequence)] = torch.as_tensor(sequence, dtype=dtype)
    return out
