"""vLLM behind two pipes, run as a script by the Python of an environment that has it: nothing of this project is imported.

The first line in is the settings, and each later one a batch; each is answered by one line. All are JSON.
"""

import json
import math
import os
import sys
import time


def main() -> None:
    """Answer until standard input ends."""
    # vLLM and its libraries print to standard output, which is the answers' alone.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    # In one process, so that steps can be taken one by one and timed.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(settings.pop("cache_gib")))  # whole GiB
    try:
        import vllm  # type: ignore[import-not-found]
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=answers)
        return
    import torch

    engine = vllm.LLM(**settings, seed=0, skip_tokenizer_init=True).llm_engine
    print(json.dumps({"versions": {"vllm": vllm.__version__, "torch of vllm": torch.__version__}}), file=answers)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        print(json.dumps(decode(engine, vllm.SamplingParams, number, **request)), file=answers)


def decode(engine, sampling, number, prompts, new_tokens):
    """Sample greedily for each prompt; seconds since the start and tokens so far, after each step that sampled."""
    greedy = sampling(temperature=0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    for index, prompt in enumerate(prompts):
        engine.add_request(f"{number}-{index}", {"prompt_token_ids": prompt}, greedy)
    so_far: dict[str, int] = {}
    seconds: list[float] = []
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            so_far[output.request_id] = len(output.outputs[0].token_ids)
        sampled = sum(so_far.values())
        if sampled > (tokens[-1] if tokens else 0):
            seconds.append(time.perf_counter() - start)
            tokens.append(sampled)
    return {"seconds": seconds, "tokens": tokens}


if __name__ == "__main__":
    main()
