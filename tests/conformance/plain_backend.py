"""A small correct backend with a hook for each thing that a faulty one gets wrong."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch

from reference_impl.generation.distribution import processed_log_probs
from reference_impl.generation.interfaces import Progress
from reference_impl.generation.outputs import Completion
from reference_impl.generation.rows import Limits, Row
from reference_impl.generation.stepped import SteppedGeneration
from reference_impl.generation.updates import check_finite, check_shapes
from reference_impl.models.catalog import find_model
from reference_impl.staleness.tracker import StalenessTracker

ALONE = "each request runs alone"


class Plain(SteppedGeneration):
    """One request after the other through the model, each with a cache of its own."""

    does_not_claim = dict.fromkeys(
        ("max-requests", "chunked-prefill", "prefix-cache", "kv-buffer", "exact-admission", "eviction"), ALONE
    ) | {"prompt-logprobs": "left out", "finite-logits": "left out"}

    def __init__(self, recipe, *, tokenizer):
        self.config, self.tokenizer, self.epoch = recipe.policy.generation, tokenizer, 0
        checkpoint = find_model(recipe.policy.model_name)
        self.model = Llama(checkpoint.shape, checkpoint.read_weights())

    # --- hooks --------------------------------------------------------------------------------------------------

    def distribution(self, logits, rule):
        """What is drawn from, [vocabulary]."""
        return processed_log_probs(logits[None], *rule)[0]

    def stream_of(self, request):
        """The seed of a request's next draw."""
        return (self.config.seed * 1_000_003 + request.number) * 1_000_003 + len(request.token_ids)

    def chosen(self, logits, request):
        """The next token."""
        if request.rule[0] == 0.0:
            return int(logits.argmax())
        generator = torch.Generator().manual_seed(self.stream_of(request))
        return int(self.distribution(logits, request.rule).exp().multinomial(1, generator=generator))

    def reported(self, logits, token, request):
        """Its log-probability."""
        return float(self.distribution(logits, request.reported)[token])

    def ended(self, completion, row):
        """What is made of a row that has ended."""
        return completion

    def output(self, output):
        """What is made of each output, of a batch or of a row."""
        return output

    # --- the contract -------------------------------------------------------------------------------------------

    def _start(self):
        return Engine(self)

    def _rows(self, data):
        if any(data.get("prompt_logprobs") or []):
            raise ValueError("prompt_logprobs: left out")
        return super()._rows(data)

    def _take(self, batch):
        return [(index, self.ended(completion, batch.rows[index])) for index, completion in super()._take(batch)]

    def generate(self, data, greedy=False):
        return self.output(super().generate(data, greedy))

    def stream(self, data, greedy=False):
        for event in super().stream(data, greedy):
            yield event if isinstance(event, Progress) else (event[0], self.output(event[1]))

    async def generate_async(self, data, greedy=False):
        async for index, output in super().generate_async(data, greedy):
            yield index, self.output(output)

    def update_weights(self, state_dict, *, epoch):
        if epoch < self.epoch:
            raise ValueError(f"epoch {epoch} is older than the current epoch {self.epoch}")
        if state_dict is not None:
            check_shapes(
                {name: weight.shape for name, weight in self.model.named_parameters()},
                {name: weight.shape for name, weight in state_dict.items()},
            )
            check_finite(state_dict)
        if self._engine is not None:
            self._engine.change_weights(state_dict, epoch)
        else:
            self.load(state_dict)
        self.epoch = epoch
        return True

    def load(self, state_dict):
        """Take these values, if there are any."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters() if state_dict is not None else ():
                parameter.copy_(state_dict[name])


class Llama(torch.nn.Module):
    """A Llama for one sequence, in NumPy, whose calls cost a tenth of PyTorch's: the suite runs it some thirty times over."""

    def __init__(self, shape, weights):
        super().__init__()
        self.shape = shape
        self.weights = {name: torch.nn.Parameter(weights[name]) for name in shape.weight_shapes()}
        # The same memory, so that new values are seen. `x @ w` wants a product's weight transposed.
        self.arrays = {
            name: weight.detach().numpy()
            if name.endswith(("norm.weight", "embed_tokens.weight"))
            else weight.detach().numpy().T
            for name, weight in self.weights.items()
        }

    def named_parameters(self, *args, **kwargs):
        return iter(self.weights.items())

    @np.errstate(all="ignore")  # weights that are not finite are for the checks to find
    def forward(self, ids, cache):
        """Logits after the last of `ids`, [vocabulary]; `cache` has the keys and values before them, and gets theirs."""
        shape, weights, start = self.shape, self.arrays, len(cache[0][0]) if cache else 0
        turn = shape.rope_theta ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = np.tile(np.outer(np.arange(start, start + len(ids)), turn), 2)[:, None]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        hidden = np.triu(np.full((len(ids), start + len(ids)), -np.inf, np.float32), start + 1)
        half, scale = shape.head_dim // 2, np.float32(shape.head_dim**-0.5)

        def norm(x, name):
            square = (x * x).mean(-1, keepdims=True, dtype=np.float32)
            return x / np.sqrt(square + np.float32(shape.rms_norm_eps)) * weights[f"{name}.weight"]

        def rotated(x):
            return x * cos + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin

        x = weights["model.embed_tokens.weight"][list(ids)]
        for i in range(shape.num_hidden_layers):
            layer = f"model.layers.{i}"
            y = norm(x, f"{layer}.input_layernorm")
            q, k, v = (
                (y @ weights[f"{layer}.self_attn.{name}_proj.weight"]).reshape(len(ids), -1, shape.head_dim)
                for name in "qkv"
            )
            if i == len(cache):
                cache.append((k[:0], v[:0]))
            cache[i] = (np.concatenate([cache[i][0], rotated(k)]), np.concatenate([cache[i][1], v]))
            keys, values = (
                np.repeat(each, q.shape[1] // each.shape[1], axis=1).transpose(1, 0, 2) for each in cache[i]
            )
            scores = rotated(q).transpose(1, 0, 2) @ keys.transpose(0, 2, 1) * scale + hidden
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            y = (scores / scores.sum(-1, keepdims=True) @ values).transpose(1, 0, 2).reshape(len(ids), -1)
            x = x + y @ weights[f"{layer}.self_attn.o_proj.weight"]
            y = norm(x, f"{layer}.post_attention_layernorm")
            gate = y @ weights[f"{layer}.mlp.gate_proj.weight"]
            y = gate / (1 + np.exp(-gate)) * (y @ weights[f"{layer}.mlp.up_proj.weight"])
            x = x + y @ weights[f"{layer}.mlp.down_proj.weight"]
        x = norm(x[-1], "model.norm")
        tied = shape.tie_word_embeddings
        return torch.from_numpy(x @ (weights["model.embed_tokens.weight"].T if tied else weights["lm_head.weight"]))


@dataclass
class Request:
    """A running request; its keys and values count as slots of the `number`-th stretch."""

    number: int
    row: Row
    rule: tuple
    reported: tuple
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cache: list[tuple] = field(default_factory=list)

    def completion(self, record, **more):
        return Completion(token_ids=list(self.token_ids), logprobs=list(self.logprobs), record=record, **more)


class Engine:
    """What `SteppedGeneration` steps."""

    def __init__(self, owner):
        config = owner.config.mcore_generation_config
        self.owner, self.mode = owner, config.kv_cache_management_mode
        self.tracker, self.sampled_tokens = StalenessTracker(owner.epoch), 0
        self.limits = Limits(
            max_model_len=config.max_model_len,
            max_tokens=config.max_tokens,
            chunked_prefill=config.enable_chunked_prefill,
            block_size_tokens=config.max_model_len,
            block_size_bytes=0,
            usable_blocks=1,
            vocab_size=owner.model.shape.vocab_size,
        )
        self.running, self.numbers = {}, itertools.count()

    def add(self, row, greedy):
        config, number = self.owner.config, next(self.numbers)
        greedy = greedy or config.temperature == 0.0
        rule = (0.0, 0, 1.0) if greedy else (config.temperature, config.top_k or 0, config.top_p)
        reported = (1.0, 0, 1.0) if config.logprobs_mode == "raw_logprobs" else rule
        self.running[number] = Request(number, row, rule, reported)
        self.tracker.admit(number, len(row.prompt))
        return number

    @torch.no_grad()
    def step(self):
        done = []
        for number, request in list(self.running.items()):
            row, tokens, cached = request.row, [*request.row.prompt, *request.token_ids], self.tracker.cached(number)
            logits = self.owner.model(tokens[cached:], request.cache)
            positions = range(cached, len(tokens))
            slots = [number * self.limits.max_model_len + position for position in positions]
            self.tracker.forward([number] * len(positions), list(positions), slots)
            token = self.owner.chosen(logits, request)
            request.token_ids.append(token)
            request.logprobs.append(self.owner.reported(logits, token, request))
            self.tracker.sample([number])
            self.sampled_tokens += 1
            stopped = row.stops.completed_by(request.token_ids, self.owner.tokenizer.decode)
            if stopped or len(request.token_ids) == row.limit:
                del self.running[number]
                done.append((number, request.completion(self.tracker.finish(number), truncated=not stopped)))
        return done

    def change_weights(self, state_dict, epoch):
        renew = self.mode == "recompute" and not self.tracker.suspended
        if renew:
            self.suspend()
        self.owner.load(state_dict)
        self.tracker.weights_changed(epoch)
        if renew:
            self.resume()

    def so_far(self, request):
        return self.running[request].completion(self.tracker.so_far(request))

    def abort(self, request):
        return self.running.pop(request).completion(self.tracker.abort(request))

    def suspend(self):
        self.tracker.suspend(self.mode)
        for request in self.running.values() if self.mode == "recompute" else ():
            request.cache = []

    def resume(self):
        self.tracker.resume()

    def close(self):
        self.running.clear()
