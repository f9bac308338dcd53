"""Each fault fails the checks that are meant for it, and no other; without a fault all pass."""

import pytest
from conformance.faulty import FAULTS
from conformance.plain_backend import Plain

from reference_impl.conformance.suite import run_suite

REFUSALS = {
    "faults/empty-prompt",
    "faults/prompt-too-long",
    "faults/token-outside-the-vocabulary",
    "faults/prompt-larger-than-a-step",
    "faults/refused-rows-are-their-prompts",
}
POLICY_BOUNDARIES = {
    "staleness/policy-changes-at-n",
    "staleness/kv-changes-at-n-minus-one",
    "staleness/two-changes-in-one-answer",
    "staleness/two-changes-between-two-tokens",
    "staleness/average-counts-tokens",
    "staleness/update-before-the-first-prefill",
    "staleness/sleep-that-persists",
    "staleness/sleep-that-offloads",
    "staleness/sleep-that-recomputes",
    "staleness/update-that-recomputes",
    "staleness/records-are-a-request-s-own",
}
ASLEEP = {"staleness/sleep-that-persists", "staleness/sleep-that-offloads", "staleness/sleep-that-recomputes"}
SLEEPS = {
    "lifecycle/pending-requests-survive-sleep",
    "lifecycle/offloaded-cache-comes-back",
    "lifecycle/dropped-cache-is-computed-again",
}
UNDER_WAY = {
    "updates/fall-between-two-steps",
    "updates/old-cache-new-weights",
    "updates/new-cache-new-weights",
    "updates/logprobs-are-of-their-epoch",
}
UNEVEN = {  # batches in which rows are padded
    "contract/right-padded",
    "contract/lengths-decide-padding",
    "contract/padding-values-are-not-read",
    "contract/logprobs-at-their-own-index",
    "contract/stream-ends-each-row-once",
    "sampling/agrees-with-transformers",
    "sampling/drawn-agrees-with-transformers",
    "sampling/own-streams",
    "stopping/several-stop-ids",
    "stopping/first-token-may-stop",
    "stopping/stop-strings-of-one-row",
    "stopping/strings-and-ids-together",
    "stopping/lengths-at-the-edge",
    "stopping/one-new-token",
    "company/batched-as-alone",
    "company/arriving-late",
    "faults/prompt-too-long",
    "faults/prompt-larger-than-a-step",
} | SLEEPS

MEANT = {
    "best-candidates-logprob": {
        "sampling/logprob-of-the-sampled-token",
        "sampling/temperature-divides-logits",
        "sampling/processed-by-default",
        "sampling/raw-on-request",
        "sampling/filters-together",
        "sampling/drawn-agrees-with-transformers",
    },
    "temperature-on-logprobs": {
        "sampling/temperature-divides-logits",
        "sampling/filters-together",
        "sampling/drawn-agrees-with-transformers",
    },
    "raw-instead-of-processed": {
        "sampling/temperature-divides-logits",
        "sampling/processed-by-default",
        "sampling/top-k-before-top-p",
        "sampling/top-p-keeps-the-smallest-set",
        "sampling/top-k-of-one",
        "sampling/filters-together",
        "sampling/drawn-agrees-with-transformers",
    },
    "top-p-before-top-k": {"sampling/top-k-before-top-p", "sampling/filters-together"},
    "greedy-nan": {
        "contract/lengths-decide-padding",
        "contract/logprobs-at-their-own-index",
        "contract/stream-ends-each-row-once",
        "sampling/greedy-is-finite",
        "sampling/greedy-overrides-the-filters",
        "sampling/agrees-with-transformers",
        "stopping/stop-token-is-kept",
        "stopping/stop-string-over-tokens",
        "company/batched-as-alone",
        "company/arriving-late",
        "invariance/block-size-does-not-matter",
        "updates/before-the-engine-is-there",
        "updates/while-asleep",
        "updates/every-weight-arrives",
        "updates/old-cache-new-weights",
        "updates/new-cache-new-weights",
        "updates/logprobs-are-of-their-epoch",
        "faults/documented-recipe-on-a-small-model",
    },
    "highest-of-ties": {"sampling/greedy-takes-the-lowest-id"},
    "one-stream-for-all": {"sampling/own-streams"},
    "same-stream-for-each": {  # equal rows draw equally, so that nothing else is ever drawn for them
        "sampling/equal-prompts-draw-differently",
        "sampling/frequencies",
        "sampling/logprob-of-the-sampled-token",
        "sampling/temperature-divides-logits",
        "sampling/processed-by-default",
        "sampling/raw-on-request",
        "sampling/top-p-keeps-the-smallest-set",
        "sampling/top-k-off",
    },
    "stop-token-dropped": {
        "contract/right-padded",
        "contract/lengths-decide-padding",
        "contract/order-of-the-prompts",
        "contract/sampled-tokens-are-those-returned",
        "contract/async-indices",
        "stopping/several-stop-ids",
        "stopping/stop-token-is-kept",
        "stopping/null-stops-at-the-end-of-sequence",
        "stopping/first-token-may-stop",
        "stopping/strings-and-ids-together",
        "stopping/truncated-says-what-ended-it",
    },
    "one-stop-id": {"stopping/several-stop-ids"},
    "stop-string-keeps-logprobs": {
        "stopping/stop-string-over-tokens",
        "stopping/stop-strings-of-one-row",
        "stopping/strings-and-ids-together",
        "stopping/stop-string-at-the-limit",
        "stopping/every-length-has-its-logprobs",
    },
    "truncated-at-the-limit": {"stopping/truncated-says-what-ended-it", "stopping/stop-string-at-the-limit"},
    "prompt-echoed-wrong": {
        "contract/prompt-comes-back",
        "contract/right-padded",
        "contract/lengths-decide-padding",
        "stopping/lengths-at-the-edge",
    },
    "left-padded": UNEVEN | {"contract/prompt-comes-back", "stopping/every-length-has-its-logprobs"},
    "last-token-overwritten": UNEVEN - {"contract/lengths-decide-padding", "contract/logprobs-at-their-own-index"},
    "stop-taken-for-padding": {
        "contract/lengths-decide-padding",
        "stopping/null-stops-at-the-end-of-sequence",
        "stopping/truncated-says-what-ended-it",
    },
    "reads-padding": {
        "contract/columns",
        "contract/right-padded",
        "contract/lengths-decide-padding",
        "contract/padding-values-are-not-read",
        "contract/logprobs-at-their-own-index",
        "contract/stream-ends-each-row-once",
        "contract/async-indices",
        "sampling/agrees-with-transformers",
        "sampling/drawn-agrees-with-transformers",
        "stopping/lengths-at-the-edge",
        "stopping/one-new-token",
        "company/batched-as-alone",
        "company/arriving-late",
        "staleness/records-end-where-sequences-do",
    }
    | REFUSALS - {"faults/empty-prompt"},
    "in-order-of-finish": {
        "contract/right-padded",
        "contract/order-of-the-prompts",
        "contract/sampled-tokens-are-those-returned",
        "stopping/several-stop-ids",
        "stopping/stop-strings-of-one-row",
        "stopping/strings-and-ids-together",
        "stopping/lengths-at-the-edge",
    }
    | REFUSALS - {"faults/refused-rows-are-their-prompts"},
    "async-counts-up": {"contract/async-indices"},
    "failed-rows-have-text": REFUSALS,
    "wakes-by-itself": {
        "lifecycle/asleep-until-prepared",
        "lifecycle/asleep-when-finished",
        "lifecycle/over-when-shut-down",
        "lifecycle/leaving-the-context-shuts-down",
    }
    | SLEEPS,
    "shuts-down-once": {
        "lifecycle/over-when-shut-down",
        "lifecycle/shutdown-twice",
        "lifecycle/shutdown-under-way",
        "lifecycle/leaving-the-context-shuts-down",
        "lifecycle/neighbors-do-no-harm",
    },
    "empty-prompt-kills": {"faults/empty-prompt", "faults/all-failed"},
    "one-fails-all": REFUSALS,
    "update-not-applied": UNDER_WAY
    | {
        "updates/before-the-engine-is-there",
        "updates/while-asleep",
        "updates/every-weight-arrives",
        "updates/epochs-do-not-fall",
    },
    "update-a-step-late": UNDER_WAY,
    "update-drops-requests": UNDER_WAY
    | POLICY_BOUNDARIES - ASLEEP
    | {
        "updates/running-requests-go-on",
        "staleness/attended-is-the-oldest-read",
        "staleness/columns-are-the-records",
    },
    "epochs-may-fall": {"updates/epochs-do-not-fall"},
    "missing-weights-stay": {"updates/missing-weight-is-refused"},
    "recompute-forgotten": {
        "updates/new-cache-new-weights",
        "staleness/sleep-that-recomputes",
        "staleness/update-that-recomputes",
    },
    "policy-at-n-minus-one": POLICY_BOUNDARIES,
    "kv-at-the-message": {"staleness/update-before-the-first-prefill"},
    "records-too-long": {
        "staleness/nothing-changes",
        "staleness/attended-is-the-oldest-read",
        "staleness/update-before-the-first-prefill",
        "staleness/sleep-that-recomputes",
        "staleness/update-that-recomputes",
        "staleness/records-end-where-sequences-do",
        "staleness/columns-are-the-records",
        "staleness/turns-count-once",
    },
}


def failed(backend) -> dict[str, str]:
    """The checks that a backend fails, and why."""
    return {result.check: result.why for result in run_suite(backend) if result.outcome == "failed"}


def test_without_a_fault_all_pass():
    """The backend that faults are put into is a correct one."""
    assert failed(Plain) == {}


def test_every_fault_has_checks_that_are_meant_for_it():
    """Twenty at least."""
    assert set(MEANT) == set(FAULTS)
    assert len(FAULTS) >= 20 and all(MEANT.values())


@pytest.mark.parametrize("fault", MEANT)
def test_fails_exactly_the_checks_meant_for_it(fault):
    """No fault passes, and no check fails for a reason that is not its own."""
    found = failed(FAULTS[fault])
    assert set(found) == MEANT[fault], found
