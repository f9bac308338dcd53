"""The pictures that commands draw: the roofline of a recorded `genref bench`, and the sizes of `genref plan --sweep`.

`python docs/figures/plots.py` draws `roofline.svg` and `buffer.svg`. Their pages run the same calls and compare.
"""

import contextlib
import io
import shlex
import sys
from pathlib import Path

from reference_impl.bench.results import Results
from reference_impl.bench.roofline import picture
from reference_impl.cli.main import app

HERE = Path(__file__).parent
BENCH = HERE.parent / "data" / "bench-2026-12-02.json"
PLAN = (
    "plan examples/recipes/grpo-llama3.2-1b-instruct-1n8g-megatron_generation.yaml "
    "--prompt-tokens 128 --response-tokens 384 --gpu-memory 80 --sweep buffer_size_gb=5,10,20,40,80"
)


def main() -> None:
    (HERE / "roofline.svg").write_text(picture(Results.read(BENCH)), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        app([*shlex.split(PLAN), "--plot", str(HERE / "buffer.svg")], standalone_mode=False)


if __name__ == "__main__":
    sys.exit(main())
