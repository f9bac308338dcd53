"""How many requests run at once: what the blocks hold, `max_requests` allows, and a step's tokens keep up with."""

from collections import Counter
from dataclasses import dataclass, replace

from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import Recipe
from reference_impl.planning.cache import KVCache, Setup, kv_cache

MOST_DOUBLINGS = 20


@dataclass(frozen=True)
class Lengths:
    """Tokens of each request's prompt and of its response."""

    prompt: int
    response: int

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are cached at the end: all but the last sampled one, which no step reads."""
        return self.prompt + self.response - 1


@dataclass(frozen=True)
class Concurrency:
    """How many requests of one length run at once.

    `blocks_each`
    : Blocks that one request holds in the end.

    `admitted`
    : Requests that the engine lets in: blocks for their prompts are enough for it.

    `at_once`
    : Requests that run to their full length together: none is paused or evicted, whatever the others do.

    `limited_by`
    : The keys without which `at_once` would be larger.
    """

    blocks_each: int
    admitted: int
    at_once: int
    limited_by: tuple[str, ...]


@dataclass(frozen=True)
class Gain:
    """The next larger setting that helps: the keys to change and what `at_once` becomes."""

    changes: dict[str, float]
    at_once: int


def choose_lengths(recipe: Recipe, prompt: int | None = None, response: int | None = None) -> Lengths:
    """The lengths that are planned for; raises `ConfigError` for those that the engine refuses.

    A response is `max_new_tokens`, cut where prompt and response reach `max_model_len`, as the engine cuts it. A prompt
    is what the response leaves of `max_model_len`, or half of it where that is nothing.
    """
    generation = recipe.policy.generation
    config = generation.mcore_generation_config
    longest = config.max_model_len
    if prompt is not None and response is not None and prompt + response > longest:
        raise ConfigError(
            f"--prompt-tokens: {prompt} and --response-tokens: {response} are {prompt + response} tokens, "
            f"more than max_model_len: {longest}"
        )
    for option, value in (("--prompt-tokens", prompt), ("--response-tokens", response)):
        if value is not None and value >= longest:
            raise ConfigError(f"{option}: {value} leaves no room in max_model_len: {longest}")
    if prompt is None:
        left = longest - (generation.max_new_tokens if response is None else response)
        prompt = left if left > 0 else max(longest // 2, 1)
    if response is None:
        response = min(generation.max_new_tokens, longest - prompt)
    if response < 1:
        raise ConfigError(f"max_model_len: {longest} leaves no room for a response")
    if prompt > config.max_tokens and not config.enable_chunked_prefill:
        raise ConfigError(
            f"a prompt of {prompt} tokens is more than max_tokens: {config.max_tokens}; "
            "raise max_tokens or set enable_chunked_prefill: true"
        )
    return Lengths(prompt, response)


def concurrency(setup: Setup, cache: KVCache, lengths: Lengths) -> Concurrency:
    """Requests of these lengths that the engine admits, and that run to their end together."""
    each = -(-lengths.cached // cache.block_tokens)
    # The engine refuses a request by its whole length, although the last token needs no room.
    fits = -(-(lengths.prompt + lengths.response) // cache.block_tokens) <= cache.active_blocks
    held = cache.active_blocks // each if fits else 0
    starting = cache.active_blocks // -(-lengths.prompt // cache.block_tokens) if fits else 0
    most = min(cache.max_requests, held)
    overlapping = most_overlapping(setup, lengths, most)
    at_once = min(most, overlapping)
    limits = [(cache.max_requests_key, cache.max_requests), ("buffer_size_gb", held)]
    if overlapping < most:
        limits.append(("max_tokens", overlapping))
    limited_by = tuple(dict.fromkeys(key for key, number in limits if number == at_once))
    return Concurrency(each, min(cache.max_requests, starting), at_once, limited_by)


def most_overlapping(setup: Setup, lengths: Lengths, enough: int) -> int:
    """Requests in the context at once if `max_tokens` alone held them back; counting stops at `enough`.

    This follows the engine's scheduler step by step: a running request takes one token, prompts share what is left, and
    the first ones end while later ones still wait.
    """
    config = setup.config
    ends: Counter[int] = Counter()  # step -> requests that sample their last token in it
    running, peak, waiting = 0, 0, lengths.prompt
    # The most are not together when the first one ends: what is left of a step's tokens shifts from prompt to prompt.
    for step in range(4 * (lengths.response + -(-lengths.prompt // config.max_tokens)) + 16):
        budget = config.max_tokens - running
        started = 0
        while budget > 0 and running + started < enough:
            chunk = min(waiting, budget) if config.enable_chunked_prefill else waiting
            if chunk > budget:
                break
            if waiting - chunk == 1:  # flash-attention takes no prompt chunk of one token, so none is left over
                chunk -= 1
                if not chunk:
                    break
            budget -= chunk
            waiting -= chunk
            if waiting:
                break
            started += 1
            waiting = lengths.prompt
        partial = waiting < lengths.prompt
        peak = max(peak, running + started + partial)
        if peak >= enough:
            break
        ends[step + lengths.response - 1] += started
        running += started - ends.pop(step, 0)
    return peak


def next_larger(setup: Setup, lengths: Lengths) -> Gain | None:
    """What doubling the limiting keys, as often as it takes, buys; `None` where no doubling helps."""
    now = concurrency(setup, kv_cache(setup), lengths)
    changed = setup
    for _ in range(MOST_DOUBLINGS):
        here = concurrency(changed, kv_cache(changed), lengths)
        if here.at_once > now.at_once:
            before = setup.config
            changes = {k: v for k, v in changed.config.model_dump().items() if v != getattr(before, k)}
            return Gain(changes, here.at_once)
        changed = _doubled(changed, here.limited_by)
    return None


def _doubled(setup: Setup, keys: tuple[str, ...]) -> Setup:
    """The setup with these keys doubled; `max_tokens` follows where it would be less than `max_requests`."""
    config = setup.config
    update = {key: 2 * getattr(config, key) for key in keys}
    if (requests := update.get("max_requests", 0)) > update.get("max_tokens", config.max_tokens):
        update["max_tokens"] = requests
    return replace(setup, config=config.model_copy(update=update))
