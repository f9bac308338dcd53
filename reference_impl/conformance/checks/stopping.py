"""Stops and lengths: what ends a sequence, what is kept of it, and what `truncated` says."""

import torch

from reference_impl.conformance.batches import finish, greedy, prompts, response_logprobs, responses
from reference_impl.conformance.expect import close, equal
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import Digits, chain, row


class Pairs(Digits):
    """A tokenizer whose token t reads as two letters: 'ab', 'cd', 'ef' and so on."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + 2 * token) + chr(ord("b") + 2 * token) for token in token_ids)


@check()
def several_stop_ids(lab: Lab) -> None:
    """Every stop id stops, the first that comes: of {2, 11}, the stream 5, 2, 9, 11 ends as 5, 2."""
    backend = lab.backend(chain(1, 5, 2, 9, 11), stop_token_ids=[2, 11], max_new_tokens=8)
    output = backend.generate(prompts([1], [9]), greedy=True)
    equal(responses(output), [[5, 2], [11]], "responses")
    equal(output["generation_lengths"].tolist(), [2, 1], "generation_lengths")
    equal(output["truncated"].tolist(), [False, False], "truncated")


@check()
def stop_token_is_kept(lab: Lab) -> None:
    """What stops a sequence is part of it, with its log-probability: the model is trained to say it."""
    output = lab.backend(chain(1, 5, 7, 8), stop_token_ids=[7], max_new_tokens=8).generate(prompts([1]), greedy=True)
    equal(responses(output), [[5, 7]], "the response to a stream 5, 7, 8 with stop id 7")
    close(response_logprobs(output)[0], [0.0, 0.0], "its log-probabilities", 1e-4)


@check()
def null_stops_at_the_end_of_sequence(lab: Lab) -> None:
    """`stop_token_ids: null` stops at the tokenizer's end of sequence, as NeMo RL reads it; a list stops at its own."""
    backend = lab.backend(chain(1, 5, 0, 8), stop_token_ids=None, max_new_tokens=3)
    equal(greedy(backend, [1]), [[5, 0]], "the response with stop_token_ids null")
    backend = lab.backend(chain(1, 5, 0, 8), stop_token_ids=[], max_new_tokens=3)
    equal(greedy(backend, [1]), [[5, 0, 8]], "the response with an empty list")


@check()
def first_token_may_stop(lab: Lab) -> None:
    """A sequence whose first token stops it has one token, and is not generated on."""
    output = lab.backend(chain(1, 5, 6), stop_token_ids=[5], max_new_tokens=4).generate(prompts([1], [6]), greedy=True)
    equal(responses(output), [[5], [6] * 4], "responses")
    equal(output["truncated"].tolist(), [False, True], "truncated")


@check()
def stops_in_the_prompt_do_not_count(lab: Lab) -> None:
    """Only what was generated stops a sequence, and a string does not begin in the prompt."""
    backend = lab.backend(chain(5, 6, 7, 8), stop_token_ids=[5], stop_strings=["fg"], max_new_tokens=4)
    equal(greedy(backend, [5, 6, 5]), [[6, 7, 8, 8]], "the response after a prompt with a stop id and half a string")


@check()
def stop_string_over_tokens(lab: Lab) -> None:
    """A stop string that takes several tokens ends the sequence with its last, with as many log-probabilities as ids."""
    backend = lab.backend(chain(1, 5, 6, 7, 8), stop_strings=["fgh"], max_new_tokens=6)
    output = backend.generate(prompts([1]), greedy=True)
    equal(responses(output), [[5, 6, 7]], "the response until 'fgh'")
    close(response_logprobs(output)[0], [0.0] * 3, "its log-probabilities", 1e-4)
    equal(output["output_ids"].shape, output["logprobs"].shape, "shapes of ids and log-probabilities")
    equal(output["truncated"].tolist(), [False], "truncated")


@check()
def stop_string_across_borders(lab: Lab) -> None:
    """A stop string may begin and end in the middle of a token: 'bc' in 'ab', 'cd'."""
    table = chain(5, 0, 1, 2, 3)
    for strings, expected in ((["bc"], [0, 1]), (["de"], [0, 1, 2]), (["a"], [0]), (["bd"], [0, 1, 2, 3])):
        backend = lab.backend(table, stop_strings=strings, max_new_tokens=4, tokenizer=Pairs())
        equal(greedy(backend, [5]), [expected], f"the response with stop string {strings[0]!r}")


@check()
def stop_strings_of_one_row(lab: Lab) -> None:
    """Strings in the batch stop that row alone, beside the recipe's."""
    backend = lab.backend(chain(1, 5, 6, 7, 8, 9), stop_strings=["j"], max_new_tokens=5)
    found = greedy(backend, [1], [1], [1], stop_strings=[["fg"], None, ["x", "h"]])
    equal(found, [[5, 6], [5, 6, 7, 8, 9], [5, 6, 7]], "responses of rows with and without strings of their own")


@check()
def strings_and_ids_together(lab: Lab) -> None:
    """Whatever comes first, an id or a string, ends the sequence."""
    backend = lab.backend(chain(1, 5, 6, 7, 8, 9), stop_strings=["gh"], stop_token_ids=[8], max_new_tokens=6)
    equal(greedy(backend, [1], [7]), [[5, 6, 7], [8]], "responses")


@check()
def truncated_says_what_ended_it(lab: Lab) -> None:
    """`truncated` is true where a length limit came before any stop, and false for a stop at the limit."""
    for stream, expected, truncated in (
        ((5, 6, 7, 0), [5, 6, 7, 0], False),
        ((5, 6, 7, 8), [5, 6, 7, 8], True),
        ((5, 0, 3), [5, 0], False),
    ):
        backend = lab.backend(chain(1, *stream), stop_token_ids=[0], max_new_tokens=4, length=8)
        output = backend.generate(prompts([1]), greedy=True)
        equal(responses(output), [expected], f"the response to a stream {stream}")
        equal(output["truncated"].tolist(), [truncated], f"truncated of {expected}")


@check()
def truncated_by_the_context(lab: Lab) -> None:
    """A prompt of 6 in a context of 8 gets 2 tokens, and is truncated."""
    backend = lab.backend(chain(1, 5, 6, 7, 8), stop_token_ids=[0], max_new_tokens=4, length=8)
    output = backend.generate(prompts([2, 3, 4, 3, 4, 1]), greedy=True)
    equal(responses(output), [[5, 6]], "the response")
    equal(output["truncated"].tolist(), [True], "truncated")


@check()
def stop_string_at_the_limit(lab: Lab) -> None:
    """A stop string that the last token completes is a stop, no truncation."""
    backend = lab.backend(chain(1, 5, 6, 7, 8), stop_strings=["hi"], max_new_tokens=4)
    output = backend.generate(prompts([1]), greedy=True)
    equal(responses(output), [[5, 6, 7, 8]], "the response")
    equal(output["truncated"].tolist(), [False], "truncated")


@check()
def lengths_at_the_edge(lab: Lab) -> None:
    """A context of 8: a prompt of 6 gets 2 tokens, one of 7 gets 1, one of 8 gets none and is done."""
    backend = lab.backend(chain(1, 5, 6, 7, 8), max_new_tokens=5, length=8)
    output = backend.generate(prompts([3] * 5 + [1], [3] * 6 + [1], [1] * 8, [1]), greedy=True)
    equal(responses(output), [[5, 6], [5], [], [5, 6, 7, 8, 8]], "responses")
    equal(output["truncated"].tolist(), [True] * 4, "truncated")
    equal(output["errors"], [None] * 4, "errors")
    equal(output["output_ids"][2, :8].tolist(), [1] * 8, "the prompt that fills the context")


@check()
def one_new_token(lab: Lab) -> None:
    """`max_new_tokens: 1` is one token, from the prefill alone."""
    backend = lab.backend(chain(1, 5, 6), max_new_tokens=1)
    equal(greedy(backend, [1], [3, 5]), [[5], [6]], "responses of one token")
    equal([responses(output) for output in finish(backend, [1], [3, 5])], [[[5]], [[6]]], "the same as a stream")


@check()
def every_length_has_its_logprobs(lab: Lab) -> None:
    """As many log-probabilities as ids, whatever stops a sequence: none lost, none left over."""
    table = row(t1=0.0, t2=0.0, t3=0.0, t4=0.0)
    backend = lab.backend(table, stop_token_ids=[1], stop_strings=["cd", "ddd"], max_new_tokens=9)
    output = backend.generate(prompts(*[[1]] * 24))
    for ids, logprobs in zip(responses(output), response_logprobs(output), strict=True):
        close(logprobs, [-1.3863] * len(ids), f"log-probabilities of {ids}", 1e-4)
    after = torch.arange(output["logprobs"].shape[1]) >= output["unpadded_sequence_lengths"][:, None]
    equal(output["logprobs"][after].abs().sum().item(), 0.0, "log-probabilities after the end of sequences")
