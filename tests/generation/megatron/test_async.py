"""Several batches at once, and what an interrupted one gives back."""

import asyncio

from support.batches import prompts, responses, tokens_of

from reference_impl.generation.interfaces import Progress


class TestAsync:
    async def collect(self, backend, batch):
        return [(index, responses(output)[0]) async for index, output in backend.generate_async(batch, greedy=True)]

    def test_yields_as_sequences_finish(self, either):
        """Two callers at once; in each, the one that fills the context first comes first, whatever its place."""
        alone = either.generate(prompts(*tokens_of(90, 60, 80)), greedy=True)

        async def both():
            return await asyncio.gather(
                self.collect(either, prompts(*tokens_of(60, 90))), self.collect(either, prompts(*tokens_of(80)))
            )

        first, second = asyncio.run(both())
        assert [index for index, _ in first] == [1, 0]
        assert first == [(1, responses(alone)[0]), (0, responses(alone)[1])]
        assert second == [(0, responses(alone)[2])]

    def test_an_interrupted_batch_gives_what_it_has(self, either):
        """Each sequence is handed out once, by the stream or by `unfinished`: whole, or as far as it has come."""
        batch, got = prompts(*tokens_of(92, 10)), []
        for event in either.stream(batch, greedy=True):
            if not isinstance(event, Progress):
                got.append(event)
            elif event.sampled_tokens >= 3:
                break
        got += either.unfinished()
        assert sorted(index for index, _ in got) == [0, 1]
        expected = either.generate(batch, greedy=True)
        for index, output in got:
            tokens, whole = responses(output)[0], responses(expected)[index]
            assert tokens == whole[: len(tokens)]
            assert output["errors"] == [None if len(tokens) == len(whole) else "interrupted"]
        if either.config.mode == "direct":  # where the engine stands still while we look
            assert [len(responses(output)[0]) for _, output in got] == [2, 2]
