"""Life: asleep, awake, asleep again, shut down, and what running requests make of it."""

from reference_impl.conformance.batches import PROMPT, finish, greedy, prompts, responses
from reference_impl.conformance.expect import equal, hold, raises
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import chain
from reference_impl.generation.interfaces import GenerationError, GenerationInterface


def refuses(backend: GenerationInterface, when: str) -> None:
    """`generate` and `stream` raise at once."""
    raises(GenerationError, lambda: backend.generate(prompts([1])), f"generate {when}")
    raises(GenerationError, lambda: next(iter(backend.stream(prompts([1])))), f"stream {when}")


@check()
def asleep_until_prepared(lab: Lab) -> None:
    """Generating before `prepare_for_generation` is an error at once, no wait and no wrong answer."""
    backend = lab.backend(chain(1, 5, 6), awake=False, max_new_tokens=2)
    refuses(backend, "before prepare_for_generation")
    equal(backend.prepare_for_generation(), True, "prepare_for_generation")
    equal(greedy(backend, [1]), [[5, 6]], "the response after it")


@check()
def asleep_when_finished(lab: Lab) -> None:
    """Generating after `finish_generation` is an error at once, for training may have the device."""
    backend = lab.backend(chain(1, 5, 6), max_new_tokens=2)
    equal(backend.finish_generation(), True, "finish_generation")
    refuses(backend, "after finish_generation")


@check()
def over_when_shut_down(lab: Lab) -> None:
    """Generating after `shutdown` is an error at once."""
    backend = lab.backend(chain(1, 5, 6), max_new_tokens=2)
    equal(backend.shutdown(), True, "shutdown")
    refuses(backend, "after shutdown")


@check()
def prepare_twice(lab: Lab) -> None:
    """A second `prepare_for_generation` leaves a running engine, and its requests, alone."""
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=3)
    outputs = finish(backend, [1], at={1: lambda: equal(backend.prepare_for_generation(), True, "the second prepare")})
    equal(responses(outputs[0]), [[5, 6, 7]], "the response around a second prepare")
    equal(backend.sampled_tokens, 3, "sampled_tokens")


@check()
def finish_twice(lab: Lab) -> None:
    """`finish_generation` may come twice, and before any engine is there."""
    backend = lab.backend(chain(1, 5, 6), awake=False, max_new_tokens=2)
    equal(backend.finish_generation(), True, "finish_generation before prepare")
    backend.prepare_for_generation()
    equal([backend.finish_generation() for _ in range(2)], [True, True], "finish_generation twice")
    backend.prepare_for_generation()
    equal(greedy(backend, [1]), [[5, 6]], "the response after it")


@check()
def shutdown_twice(lab: Lab) -> None:
    """`shutdown` may come twice, and to an engine that sleeps or never was."""
    for prepare in (True, False):
        backend = lab.backend(chain(1, 5), awake=prepare)
        equal([backend.shutdown() for _ in range(2)], [True, True], "shutdown twice")
    backend = lab.backend(chain(1, 5))
    backend.finish_generation()
    equal(backend.shutdown(), True, "shutdown of a sleeping engine")


@check()
def shutdown_under_way(lab: Lab) -> None:
    """`shutdown` ends an engine that has requests under way, and waits for none of them."""
    backend = lab.backend(max_new_tokens=40)
    stream = backend.stream(prompts(PROMPT, PROMPT[:3]), greedy=True)
    for _ in range(3):
        next(stream)
    equal(backend.shutdown(), True, "shutdown with two requests under way")


@check()
def leaving_the_context_shuts_down(lab: Lab) -> None:
    """As a context manager a backend is awake inside and shut down outside."""
    backend = lab.backend(chain(1, 5, 6), awake=False, max_new_tokens=2)
    with backend as entered:
        hold(entered is backend, "the context manager gives another object")
        equal(greedy(backend, [1]), [[5, 6]], "the response inside")
    refuses(backend, "after the context")


@check()
def wakes_to_the_same(lab: Lab) -> None:
    """Generate, finish, prepare, generate: the same greedy tokens, each time."""
    backend = lab.backend(max_new_tokens=8)
    expected = greedy(backend, PROMPT)
    for time in range(2):
        backend.finish_generation()
        backend.prepare_for_generation()
        equal(greedy(backend, PROMPT), expected, f"the response after sleep {time + 1}")


def sleeps_unharmed(lab: Lab, mode: str) -> None:
    """Suspended in the middle of generation and resumed: the same tokens as undisturbed, and none twice."""
    backend = lab.backend(max_new_tokens=12, mcore={"kv_cache_management_mode": mode})
    rows = [PROMPT, PROMPT[:9]]
    expected = greedy(backend, *rows)

    def sleep() -> None:
        backend.finish_generation()
        raises(GenerationError, lambda: backend.generate(prompts([1])), "generate while requests sleep")
        backend.prepare_for_generation()

    for index, output in enumerate(finish(backend, *rows, at={7: sleep, 14: sleep})):
        equal(responses(output)[0], expected[index], f"row {index} around two sleeps ({mode})")
        equal(output["errors"], [None], f"errors of row {index}")


@check()
def pending_requests_survive_sleep(lab: Lab) -> None:
    """Requests that are under way when the engine goes to sleep finish after it wakes, as if it had not slept."""
    sleeps_unharmed(lab, "persist")


@check("offload")
def offloaded_cache_comes_back(lab: Lab) -> None:
    """With `offload` the cache of running requests comes back as it was."""
    sleeps_unharmed(lab, "offload")


@check("recompute")
def dropped_cache_is_computed_again(lab: Lab) -> None:
    """With `recompute` running requests go on from a cache that is computed again, and say the same."""
    sleeps_unharmed(lab, "recompute")


@check()
def neighbors_do_no_harm(lab: Lab) -> None:
    """Two backends in one process share nothing: one that sleeps or is shut down leaves the other alone."""
    one, other = (lab.backend(max_new_tokens=5) for _ in range(2))
    expected = greedy(one, PROMPT)
    other.finish_generation()
    equal(greedy(one, PROMPT), expected, "the response while another backend sleeps")
    other.prepare_for_generation()
    equal(greedy(other, PROMPT), expected, "the other's response")
    other.shutdown()
    equal(greedy(one, PROMPT), expected, "the response after another was shut down")
