"""Weights, faults and the life of the engine: what is refused, what is put away and brought back, and who is told what."""

import errno
import resource
import signal

import pytest
import torch
from generation.reference.small_llama import SHAPE, checkpoint, engine, hf_weights, shared
from support.batches import prompts, responses

from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.generation.reference import weights as weights_module
from reference_impl.generation.reference.weights import EMBEDDING, OUTPUT, Weights
from reference_impl.models import tiny
from reference_impl.models.gpt import build_gpt_model
from reference_impl.models.llama import megatron_from_hf

PROMPT = [7, 1, 60, 33, 2, 9, 11, 52, 4, 40, 41, 8, 30, 17, 22, 5]
ROWS = PROMPT[:6], PROMPT[6:10], PROMPT[9:16]


def finish(backend, *rows, at=None, greedy=True):
    """Stream a batch; `at[n]` is called between two steps, once `n` tokens are sampled. One-row outputs by index."""
    left, ended = dict(at or {}), {}
    for event in backend.stream(prompts(*rows), greedy):
        if not isinstance(event, Progress):
            ended[event[0]] = event[1]
        elif due := [count for count in left if event.sampled_tokens >= count]:
            left.pop(due[0])()
    assert not left
    return [ended[i] for i in range(len(rows))]


def said(outputs):
    return [responses(output)[0] for output in outputs]


@pytest.fixture
def expected():
    """What an undisturbed engine says to `ROWS`."""
    return responses(engine(max_new_tokens=8).generate(prompts(*ROWS), greedy=True))


class TestWeights:
    @pytest.mark.parametrize("tied", [False, True])
    def test_names_and_values_are_given_back(self, tied):
        shape = tiny.SHAPE if tied else SHAPE
        given = dict(megatron_from_hf(tiny.random_weights(shape), shape))
        weights = Weights(shape, given.items())
        returned = dict(weights.named_parameters())
        assert list(returned) == list(given)
        assert all(torch.equal(returned[name], given[name]) for name in given)
        assert [tensor.shape for tensor in weights.parameters()] == [tensor.shape for tensor in given.values()]

    def test_a_copy_of_its_own(self):
        """Weights that are handed over as tensors may change afterwards."""
        given = shared()
        weights = Weights(SHAPE, given.items())
        for tensor in given.values():
            tensor.zero_()
        assert all(torch.equal(tensor, checkpoint(0)[name]) for name, tensor in weights.named_parameters())

    def test_a_shared_model_in_bfloat16_is_read_where_it_lies(self):
        model = build_gpt_model(SHAPE, hf_weights(), dtype=torch.bfloat16)
        backend = engine(model=model, max_new_tokens=2)
        read = backend._weights._read
        assert {name: read[name].data_ptr() for name in read} == {n: p.data_ptr() for n, p in model.named_parameters()}
        assert backend._engine.cache.data.dtype is torch.bfloat16
        assert backend.generate(prompts(PROMPT))["generation_lengths"].tolist() == [2]

    def test_a_shared_model_in_float32_is_packed_once(self, monkeypatch):
        """4 matrices in each of 2 layers and the output layer; vectors and the embedding are read where they lie."""
        packed, pack, again, repack = [], weights_module.pack, [], weights_module.repack
        monkeypatch.setattr(weights_module, "pack", lambda weight: packed.append(weight.data_ptr()) or pack(weight))
        monkeypatch.setattr(weights_module, "repack", lambda held, w: again.append(w.data_ptr()) or repack(held, w))
        model = build_gpt_model(SHAPE, hf_weights())
        parameters = dict(model.named_parameters())
        backend = engine(model=model, max_new_tokens=3)
        matrices = {name for name, tensor in parameters.items() if tensor.ndim == 2 and name != EMBEDDING}
        assert len(packed) == len(matrices) == 9
        assert set(packed) == {parameters[name].data_ptr() for name in matrices}
        for name in parameters.keys() - matrices:
            assert backend._weights._read[name].data_ptr() == parameters[name].data_ptr()
        backend.generate(prompts(PROMPT), greedy=True)
        assert len(packed) == 9
        assert not again
        backend.update_weights(checkpoint(1), epoch=1)
        assert (packed[:9], len(packed)) == (again, 9), "into the copies that are there"
        assert all(torch.equal(parameters[name], tensor) for name, tensor in checkpoint(1).items()), "training sees it"

    def test_in_place_and_by_state_dict_are_the_same(self):
        """Updates after 6 sampled tokens of 24: the tokens and records of both ways agree, and differ from no update's."""
        by_dict = engine(max_new_tokens=8)
        one = finish(by_dict, *ROWS, at={6: lambda: by_dict.update_weights(checkpoint(1), epoch=1)})
        model = shared()
        in_place = engine(model=model, max_new_tokens=8)

        def change():
            for name, tensor in model.items():
                tensor.copy_(checkpoint(1)[name])
            in_place.update_weights(None, epoch=1)

        other = finish(in_place, *ROWS, at={6: change})
        assert said(one) == said(other) != said(finish(engine(max_new_tokens=8), *ROWS))
        assert [output["staleness"] for output in one] == [output["staleness"] for output in other]
        assert one[0]["policy_epoch"][0].to_json() == [[0, 0], [8, 1]]
        assert one[0]["kv_cache_epoch"][0].to_json() == [[0, 0], [7, 1]]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda w: w.pop(OUTPUT), f"weight {OUTPUT} is missing"),
            (lambda w: w.update(extra=torch.zeros(1)), "weight extra is not a parameter of the model"),
            (lambda w: w.update({OUTPUT: torch.zeros(64, 31)}), r"has shape \[64, 31\], expected \[64, 32\]"),
            (lambda w: w[OUTPUT].__setitem__((63, 31), torch.nan), f"weight {OUTPUT} holds nan"),
            (lambda w: w[OUTPUT].__setitem__((0, 0), torch.inf), f"weight {OUTPUT} holds inf"),
            (lambda w: w[OUTPUT].__setitem__((0, 0), -torch.inf), f"weight {OUTPUT} holds -inf"),
        ],
    )
    def test_a_bad_state_dict_is_refused_whole(self, expected, change, message):
        """In the middle of a stream, the wrong tensor last: tokens, epoch and records are those of no update."""
        backend, state = engine(max_new_tokens=8), dict(shared(1))
        change(state)

        def update():
            with pytest.raises(ValueError, match=message):
                backend.update_weights(state, epoch=1)

        outputs = finish(backend, *ROWS, at={6: update})
        assert said(outputs) == expected
        assert backend.epoch == 0 and all(output["kv_cache_epoch"][0].to_json() == [[0, 0]] for output in outputs)

    @pytest.mark.parametrize(("now", "epoch"), [(3, 2), (0, -1), (0, 3.5), (0, True)])
    @pytest.mark.parametrize("running", [False, True])
    def test_what_is_no_epoch_changes_nothing(self, now, epoch, running):
        backend = engine(max_new_tokens=8)
        backend.update_weights(None, epoch=now)
        if not running:
            backend.shutdown()
        with pytest.raises(ValueError, match="epoch"):
            backend.update_weights(checkpoint(1), epoch=epoch)
        assert backend.epoch == now
        assert all(torch.equal(tensor, checkpoint(0)[name]) for name, tensor in backend.model.named_parameters())


class TestBrokenCheckpoints:
    """Changed in place, so that no check sees it before a forward pass does."""

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_requests_that_meet_it_end_and_others_finish(self, expected, value):
        """Token 33's embedding is broken after 6 sampled tokens: a request that came with it goes on, a new one ends."""
        assert all(33 not in row for row in expected)
        model = shared()
        backend = engine(model=model, max_new_tokens=8)

        def breaks():
            model[EMBEDDING][33] = value
            backend.update_weights(None, epoch=3)

        assert said(finish(backend, *ROWS, at={6: breaks})) == expected, "its keys and values were written before"
        outputs = finish(backend, ROWS[1], [33, 5, 7], ROWS[2])
        assert outputs[1]["errors"] == ["the logits of token 3 are not finite under the weights of epoch 3"]
        assert outputs[1]["generation_lengths"].tolist() == [0]
        assert said([outputs[0], outputs[2]]) == expected[1:]
        assert backend._engine.pool.used == 0

    def test_what_it_had_come_to_is_kept(self):
        """All logits broken after the fifth token: five tokens, the error, and an engine that works when mended."""
        model = shared()
        backend, whole = engine(model=model, max_new_tokens=8), engine(max_new_tokens=8)
        tokens = responses(whole.generate(prompts(PROMPT[:4]), greedy=True))[0]

        def breaks():
            model[OUTPUT][9, 0] = torch.nan
            backend.update_weights(None, epoch=1)

        (output,) = finish(backend, PROMPT[:4], at={5: breaks})
        assert output["errors"] == ["the logits of token 9 are not finite under the weights of epoch 1"]
        assert said([output]) == [tokens[:5]]
        assert output["staleness"][0].status == "aborted"
        with pytest.raises(
            GenerationError, match="every request of the batch failed; the first: the logits of token 4"
        ):
            backend.generate(prompts(PROMPT[:4]))
        backend.update_weights(checkpoint(0), epoch=2)
        assert responses(backend.generate(prompts(PROMPT[:4]), greedy=True)) == [tokens]

    def test_its_blocks_are_not_found_again(self):
        """A prompt in chunks whose first block holds NaN, with prefixes reused across updates; mended, all is well."""
        model, mcore = shared(), {"enable_prefix_caching": True, "max_tokens": 4, "max_requests": 4}
        backend = engine(model=model, max_new_tokens=4, reuse_across_updates=True, mcore=mcore)
        model[EMBEDDING][33] = torch.nan
        backend.update_weights(None, epoch=1)
        (output,) = finish(backend, [33, *PROMPT[:9]])
        assert output["errors"] == ["the logits of token 10 are not finite under the weights of epoch 1"]
        backend.update_weights(checkpoint(0), epoch=2)
        fresh = engine(max_new_tokens=4).generate(prompts([33, *PROMPT[:9]]), greedy=True)
        assert said(finish(backend, [33, *PROMPT[:9]])) == responses(fresh)


class TestSleep:
    @pytest.mark.parametrize("mode", ["persist", "offload", "recompute"])
    def test_requests_go_on(self, expected, mode):
        mcore = {"kv_cache_management_mode": mode}
        backend = engine(max_new_tokens=8, mcore=mcore)

        def nap():
            backend.suspend()
            backend.suspend()
            with pytest.raises(GenerationError, match="the engine is asleep"):
                backend.generate(prompts(PROMPT))
            backend.resume()
            backend.resume()

        outputs = finish(backend, *ROWS, at={6: nap})
        assert said(outputs) == expected
        assert {output["staleness"][0].num_recomputes for output in outputs} == {int(mode == "recompute")}

    def test_offload_is_bit_identical_and_frees_the_memory(self):
        """Blocks that are held and blocks that a prefix lookup can find come back; the rest holds nothing of anybody's."""
        mcore = {"kv_cache_management_mode": "offload", "enable_prefix_caching": True}
        backend = engine(blocks=40, max_new_tokens=8, mcore=mcore)
        finish(backend, PROMPT)
        stream = backend.stream(prompts(*ROWS), greedy=True)
        for _ in range(3):
            next(stream)
        cache, pool = backend._engine.cache, backend._engine.pool
        held = [block for request in backend._engine.scheduler.requests for block in request.blocks]
        kept = sorted({*held, *pool.known})
        assert len(pool.known) > 0 and len(held) > 0 and len(kept) < 40
        before, storage = cache.data[:, :, :, kept].clone(), cache.data.untyped_storage()
        backend.suspend()
        assert cache.data.numel() == 0 and cache._slots == [] and cache._pieces == []
        assert storage.nbytes() > 0, "this test holds the storage itself, and nobody else"
        backend.resume()
        assert cache.data.data_ptr() != storage.data_ptr()
        assert torch.equal(cache.data[:, :, :, kept], before)
        assert len([event for event in stream if not isinstance(event, Progress)]) == 3
        again = backend.generate(prompts(PROMPT), greedy=True)
        assert again["staleness"][0].prefix_cached_tokens == 12

    @pytest.mark.parametrize("fault", ["full", "too large", "nowhere"])
    def test_offload_to_a_full_disk(self, expected, monkeypatch, fault):
        """The device that is always full, a limit on the size of files, and no place for files: one error, and all goes on.

        After two tokens each, 7, 5 and 8 tokens are stored, in 2, 2 and 2 blocks of 4, and the last needs a third.
        """
        backend = engine(max_new_tokens=8, mcore={"kv_cache_management_mode": "offload"})

        def nowhere():
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

        def nap():
            before, limits = (
                backend._engine.cache.data.view(torch.int32).clone(),
                resource.getrlimit(resource.RLIMIT_FSIZE),
            )
            handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            try:
                if fault == "too large":
                    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
                elif fault == "full":
                    monkeypatch.setattr("tempfile.TemporaryFile", lambda: open("/dev/full", "w+b"))  # noqa: SIM115
                else:
                    monkeypatch.setattr("tempfile.TemporaryFile", nowhere)
                with pytest.raises(GenerationError, match="offload: 7 blocks do not fit into .* still in memory"):
                    backend.suspend()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                signal.signal(signal.SIGXFSZ, handler)
            assert not backend.asleep
            assert torch.equal(backend._engine.cache.data.view(torch.int32), before)

        assert said(finish(backend, *ROWS, at={6: nap})) == expected
        monkeypatch.undo()
        backend.suspend()
        backend.resume()
        assert responses(backend.generate(prompts(*ROWS), greedy=True)) == expected
