#!/usr/bin/env bash
# Trains by a recipe and judges by its metrics file: the reward has risen, and generation and training agree about every
# token's probability. NeMo RL has a script of this name, for eight GPUs.
#
#   tests/functional/grpo_megatron_generation.sh [OVERRIDES...]
#
# RECIPE, GENREF and RUN_FOLDER may be set; by default the synchronous tiny recipe, `genref` and a folder that is removed.
set -euo pipefail
cd "$(dirname "$0")/../.."

recipe=${RECIPE:-examples/recipes/grpo-tiny-megatron-sync.yaml}
genref=${GENREF:-genref}
folder=${RUN_FOLDER:-$(mktemp -d)}
[ -n "${RUN_FOLDER:-}" ] || trap 'rm -rf "$folder"' EXIT

"$genref" train "$recipe" --run-folder "$folder" "$@"

"$(dirname "$(command -v "$genref")")/python" - "$folder/metrics.jsonl" <<'PYTHON'
import json
import sys

steps = [json.loads(line) for line in open(sys.argv[1])]
rewards = [step["reward"] for step in steps if "reward" in step]
errors = [step["token_mult_prob_error"] for step in steps if "reward" in step]
first, last = rewards[0], sum(rewards[-5:]) / len(rewards[-5:])
print(f"reward {first:.3f} -> {last:.3f}, token_mult_prob_error at most {max(errors):.4f}")
wrong = []
if not last > first + 0.3:
    wrong.append(f"the reward has not risen by 0.3: {first:.3f} -> {last:.3f}")
if not max(errors) < 1.05:
    wrong.append(f"generation and training disagree: token_mult_prob_error {max(errors):.4f}, expected below 1.05")
if wrong:
    sys.exit("\n".join(wrong))
PYTHON
