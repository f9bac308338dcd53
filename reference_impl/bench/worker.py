"""A system of ours behind two pipes: `python -m reference_impl.bench.worker`, as `processes` starts it.

The first line in is the settings, and each later one a batch; each is answered by one line. All are JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from reference_impl.config.errors import ConfigError


def main() -> None:
    """Answer until standard input ends."""
    # Libraries print to standard output, which is the answers' alone.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        system = open_from(json.loads(sys.stdin.readline()))
        print(json.dumps({"versions": system.versions}), file=answers)
        for line in sys.stdin:
            found = system.decode(**json.loads(line))
            print(json.dumps({"seconds": list(found.seconds), "tokens": list(found.tokens)}), file=answers)
        system.close()
    except ConfigError as error:
        print(json.dumps({"refused": str(error)}), file=answers)


def open_from(settings: dict[str, Any]) -> Any:
    """Open the system that the settings describe."""
    import torch

    from reference_impl.bench.systems import Load, Place, open_system
    from reference_impl.models.catalog import find_model

    model = settings["model"]
    prompt_tokens, new_tokens = settings["lengths"]
    load = Load(model, find_model(model).shape, prompt_tokens, new_tokens, settings["batches"])
    place = Place(Path(settings["folder"]), torch.device(settings["device"]), getattr(torch, settings["dtype"]))
    return open_system(settings["name"], load, place)


if __name__ == "__main__":
    main()
