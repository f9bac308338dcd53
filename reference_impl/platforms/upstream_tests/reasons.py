"""Why a test of upstream's is not passed here: few reasons, and the rules that tell them from what a test said.

A rule is a pattern in what the test raised or gave as its reason to skip, with the place in upstream's code where it did.
A rule that no test meets any more is an error of the run: either the platform can do more now, or the rule was wrong.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

REASONS = {
    "several ranks": "It needs more than one process. The platform is one process and one rank.",
    "Mamba kernels": "It builds a Mamba layer, whose kernels (causal_conv1d, mamba_ssm) run on CUDA only.",
    "FP8 kernels": "It multiplies or quantises in FP8 formats, which only a GPU's kernels do.",
    "CUDA graphs": "It captures or compares a CUDA graph.",
    "Triton kernels": "It calls a Triton kernel by itself, for which there is no GPU.",
    "Transformer Engine": "It builds layers of Transformer Engine or of Apex, which need CUDA.",
    "FlashInfer": "It samples or compares with FlashInfer's kernels, which run on CUDA only.",
    "symmetric memory": "It exchanges tokens through memory that GPUs map for each other.",
    "a GPU's random numbers": "It holds tokens, or a count that follows from them, to what CUDA's generator draws.",
    "copies to the host": "It watches the stream on which tokens leave a GPU. On a CPU they are where they are wanted.",
    "torch_memory_saver": "It needs this package, which moves a GPU's memory.",
    "left out upstream": "Upstream skips it everywhere, or this combination of its parameters.",
}


@dataclass(frozen=True)
class Rule:
    """`message` is searched in what a test said, and `test`, if given, in its name; both are regular expressions."""

    reason: str
    message: str
    test: str = ""

    def matches(self, test: str, message: str) -> bool:
        """Whether this rule explains what the test said."""
        return bool(re.search(self.message, message) and re.search(self.test, test))


RULES = (
    Rule("several ranks", r"needs \d+ ranks"),
    Rule("several ranks", r"(requires|[Nn]eeds?) at least \d+ (GPUs|EP ranks)"),
    Rule("several ranks", r"requires EP > 1"),
    # One rank decodes and the others prefill; alone, there are no others.
    Rule(
        "several ranks", r"All ranks should run eager when any rank has prefill", r"test_any_prefill_rank_forces_eager"
    ),
    Rule("Mamba kernels", r"No module named '(causal_conv1d|mamba_ssm)"),
    Rule("FP8 kernels", r"a CPU has no FP8 kernels"),
    Rule("FP8 kernels", r"AssertionError.* at megatron/core/inference/quantization/mxfp8_"),
    Rule("CUDA graphs", r"MissingOnCpuError: CUDA graph"),
    Rule("Triton kernels", r"0 active drivers.* at triton/runtime/driver.py"),
    # The kernel with a cache so large that its offsets overflow.
    Rule("Triton kernels", r"Needs >= 10 GiB free GPU memory", r"test_kv_append_block_idx_overflow"),
    Rule("Triton kernels", r"AssertionError.* at megatron/core/inference/contexts/attention_context/triton/"),
    Rule("Transformer Engine", r"TE [\d.]+ is required"),
    Rule("Transformer Engine", r"Transformer Engine is not installed"),
    Rule("Transformer Engine", r"requires Transformer Engine"),
    # Without Apex, upstream's layers of a vision model take torch's own norm, which cannot be built from a `config`.
    Rule("Transformer Engine", r"LayerNorm\.__init__\(\) got an unexpected keyword argument 'config'"),
    Rule("FlashInfer", r"could not import 'flashinfer'|FlashInfer not available"),
    Rule("FlashInfer", r"MXFP8 FlashInfer comparison requires Blackwell"),
    Rule("symmetric memory", r"SymmetricMemory does not support device type cpu"),
    Rule("Triton kernels", r"routing_map must be on CUDA"),
    Rule(
        "a GPU's random numbers",
        r"result \(\[.*\) != expected \(\[",
        r"test_simple\[InferenceCudaGraphScope\.\w+-None-gpt\]",
    ),
    Rule("a GPU's random numbers", r"assert \d+ == 35 at ", r"test_max_requests\[4\]"),
    Rule(
        "copies to the host",
        r"Expected 'record' to be called once",
        r"test_run_async_sched_sample_records_gpu_ready_event",
    ),
    Rule(
        "copies to the host",
        r"'NoneType' object has no attribute 'synchronize'",
        r"test_copy_async_sched_\w+_to_cpu_uses_",
    ),
    Rule("torch_memory_saver", r"torch_memory_saver required"),
    Rule("left out upstream", r"requires tp_size > 1 or pp_size > 1 or ep_size > 1"),
    Rule("left out upstream", r"requires model parallel size > 1"),
    Rule("left out upstream", r"activate for `megatron-core >= 0\.16`"),
    Rule("left out upstream", r"ZMQ shutdown is flaky"),
)


def explain(test: str, message: str, rules: Iterable[Rule] = RULES) -> Rule | None:
    """The first rule that explains what a test said, or `None`."""
    return next((rule for rule in rules if rule.matches(test, message)), None)
