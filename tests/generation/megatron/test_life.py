"""Sleep and wake, shutdown and faults, on the real engine with `tiny`."""

import pytest
from support.batches import prompts, responses

from reference_impl.generation.interfaces import GenerationError, Progress

PROMPT = list(b"The capital of France is")


class TestLife:
    @pytest.mark.parametrize("mode", ["direct", "coordinator"])
    def test_every_call_may_come_twice(self, make, mode):
        """prepare, finish and shutdown twice do nothing more; prepare-generate-finish-prepare-generate repeats itself."""
        backend = make(mode=mode, max_new_tokens=6, stop_token_ids=[])
        with pytest.raises(GenerationError, match="asleep"):
            backend.generate(prompts(PROMPT))
        assert backend.prepare_for_generation() and backend.prepare_for_generation()
        first = backend.generate(prompts(PROMPT), greedy=True)
        process = backend._driver.process if mode == "coordinator" else None
        assert backend.finish_generation() and backend.finish_generation()
        with pytest.raises(GenerationError, match="asleep"):
            backend.generate(prompts(PROMPT))
        backend.prepare_for_generation()
        again = backend.generate(prompts(PROMPT), greedy=True)
        assert responses(first) == responses(again)
        assert backend.shutdown() and backend.shutdown()
        if process is not None:  # it was asked to stop, not killed
            assert not process.is_alive()
            assert process.exitcode == 0
        with pytest.raises(GenerationError, match="asleep"):
            backend.generate(prompts(PROMPT))

    def sleeps_unharmed(self, backend):
        batch, slept, finished = prompts(PROMPT, PROMPT[:9]), False, {}
        undisturbed = backend.generate(batch, greedy=True)
        for event in backend.stream(batch, greedy=True):
            if not isinstance(event, Progress):
                finished[event[0]] = event[1]
            elif not slept and event.sampled_tokens >= 10:
                backend.suspend()
                backend.resume()
                slept = True
        assert slept
        for index in range(2):
            assert responses(finished[index])[0] == responses(undisturbed)[index]

    def test_requests_survive_a_sleep(self, either):
        """Suspended in the middle of generation and resumed: the same tokens as undisturbed."""
        self.sleeps_unharmed(either)

    @pytest.mark.parametrize("kv_mode", ["offload", "recompute"])
    def test_whatever_becomes_of_the_cache(self, make, kv_mode):
        """Moved to the host and back, or dropped and computed again: the same tokens."""
        backend = make(max_new_tokens=40, mcore={"kv_cache_management_mode": kv_mode}, stop_token_ids=[])
        backend.prepare_for_generation()
        self.sleeps_unharmed(backend)

    def test_the_model_can_train_while_the_engines_sleep(self, make, coordinated):
        """`InferenceMode` is process-wide and makes GPTModel refuse a loss; `finish_generation` takes it down."""
        from megatron.core.inference.utils import InferenceMode

        backend = make(max_new_tokens=2)
        backend.prepare_for_generation()
        coordinated.finish_generation()
        assert InferenceMode.is_active()
        backend.finish_generation()
        assert not InferenceMode.is_active()
        coordinated.prepare_for_generation()
        assert InferenceMode.is_active()

    def test_another_engine_that_goes_to_sleep_does_no_harm(self, make):
        """The flag is the process's; an engine at work keeps it up when its neighbour sleeps or is shut down."""
        one, other = (make(max_new_tokens=5, stop_token_ids=[]) for _ in range(2))
        one.prepare_for_generation()
        expected = one.generate(prompts(PROMPT), greedy=True)
        other.prepare_for_generation()
        other.finish_generation()
        assert responses(one.generate(prompts(PROMPT), greedy=True)) == responses(expected)
        other.prepare_for_generation()
        other.shutdown()
        assert responses(one.generate(prompts(PROMPT), greedy=True)) == responses(expected)

    def test_a_dead_coordinator_is_reported(self, make):
        """Fault: its process is killed under a running request; the caller gets an error and is not left waiting."""
        backend = make(
            mode="coordinator", max_new_tokens=200, length=256, stop_token_ids=[], mcore={"buffer_size_gb": 0.01}
        )
        backend.prepare_for_generation()
        with pytest.raises(RuntimeError, match="coordinator process has ended"):
            for event in backend.stream(prompts(PROMPT), greedy=True):
                if isinstance(event, Progress) and event.sampled_tokens >= 3:
                    backend._driver.process.kill()
                    backend._driver.process.join()
