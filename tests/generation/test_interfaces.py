"""The contract's shapes: checks that explain themselves, batches, outputs."""

import pytest
import torch
from support.batches import prompts, recipe

from reference_impl.config.errors import ConfigError
from reference_impl.generation.batch import BatchedDataDict, right_padded
from reference_impl.generation.interfaces import verify_lengths, verify_right_padding
from reference_impl.generation.outputs import Completion, to_output
from reference_impl.generation.registry import create_backend
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord


class TestPadding:
    def test_right_padded_batches_pass(self):
        """Prompts and outputs alike; a pad value inside a sequence is no padding."""
        verify_right_padding(prompts([5, 0, 7], [1]))
        verify_right_padding(prompts([5, 9], [1], pad=9), pad_value=9)
        verify_right_padding(to_output([[1]], [Completion([2, 0], [-0.5, 0.0])]))

    def test_left_padding_is_named_by_row_and_position(self):
        """The message says where, what, and what it looks like."""
        data = BatchedDataDict(input_ids=torch.tensor([[1, 2], [0, 3]]), input_lengths=torch.tensor([2, 1]))
        with pytest.raises(ValueError, match=r"input_ids\[1, 1\] is 3, but the row has 1 tokens.*left padded"):
            verify_right_padding(data)

    @pytest.mark.parametrize(
        ("ids", "lengths", "message"),
        [
            ([[1, 2]], torch.tensor([2]), "input_ids is a list, expected an int64 tensor"),
            (torch.ones(2, 3), torch.tensor([1, 1]), "input_ids is torch.float32, expected torch.int64"),
            (
                torch.ones(3, dtype=torch.int64),
                torch.tensor([1]),
                r"input_ids has shape \[3\], expected \[batch, padded\]",
            ),
            (torch.ones(2, 3, dtype=torch.int64), torch.tensor([1]), "input_ids has 2 rows, input_lengths has 1"),
            (torch.ones(2, 3, dtype=torch.int64), torch.tensor([1, 4]), r"input_lengths\[1\] is 4, outside 0..3"),
            (torch.ones(2, 3, dtype=torch.int64), torch.tensor([-1, 3]), r"input_lengths\[0\] is -1, outside 0..3"),
        ],
    )
    def test_wrong_shapes_say_what_was_expected(self, ids, lengths, message):
        """One line with name, value and expectation."""
        with pytest.raises(ValueError, match=message):
            verify_lengths(ids, lengths)

    def test_neither_prompts_nor_outputs(self):
        """The keys that are there are listed."""
        with pytest.raises(ValueError, match=r"it has \['logprobs'\]"):
            verify_right_padding(BatchedDataDict(logprobs=torch.ones(1, 1)))


class TestBatch:
    def test_rows_keeps_tensors_and_lists_together(self):
        """Chosen rows, in the order asked for."""
        batch = prompts([1, 2], [3], [4, 5], stop_strings=["a", "b", "c"])
        chosen = batch.rows([2, 0])
        assert chosen["input_ids"].tolist() == [[4, 5], [1, 2]]
        assert chosen["input_lengths"].tolist() == [2, 2]
        assert chosen["stop_strings"] == ["c", "a"]
        assert chosen.size == 2

    def test_columns_of_different_lengths_are_an_error(self):
        """The lengths are in the message."""
        with pytest.raises(ValueError, match="'a': 1, 'b': 2"):
            _ = BatchedDataDict(a=[1], b=[1, 2]).size

    def test_right_padded(self):
        """Longest row decides; none at all is an empty batch."""
        assert right_padded([[1], [2, 3]], 9, torch.int64).tolist() == [[1, 9], [2, 3]]
        assert right_padded([], 0, torch.int64).shape == (0, 0)


def test_an_output_is_put_together_as_the_contract_says():
    """Prompt then response, log-probabilities at the tokens' own indices, lengths, epochs, errors."""
    runs = EpochRuns.from_boundaries([(0, 1), (3, 2)], 4)
    record = RequestRecord(0, runs, runs, EpochRuns.missing(4), ((2, 4),), num_evictions=1)
    done = [
        Completion([7, 8], [-1.5, -0.25], record=record, truncated=True),
        Completion(error="why"),
    ]
    output = to_output([[5, 6], [4]], done)
    assert output["output_ids"].tolist() == [[5, 6, 7, 8], [4, 0, 0, 0]]
    assert output["logprobs"].tolist() == [[0.0, 0.0, -1.5, -0.25], [0.0] * 4]
    assert output["logprobs"].dtype == torch.float32
    assert output["generation_lengths"].tolist() == [2, 0]
    assert output["unpadded_sequence_lengths"].tolist() == [4, 1]
    assert output["truncated"].tolist() == [True, False]
    assert output["policy_epoch"] == [runs, None]
    assert output["num_evictions"].tolist() == [1, 0]
    assert output["staleness"] == [record, None]
    assert output["upstream_staleness"] == [None, None]
    assert output["errors"] == [None, "why"]


def test_an_unknown_backend_gets_the_nearest_name():
    """And a name like nothing gets the list."""
    with pytest.raises(ConfigError, match="no backend 'megatorn'; did you mean megatron?"):
        create_backend(recipe(backend="megatorn"))
    with pytest.raises(ConfigError, match="no backend 'x'; known backends: megatron"):
        create_backend(recipe(backend="x"))
