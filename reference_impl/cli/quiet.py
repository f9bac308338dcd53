"""Silence for what upstream says at import and construction, which no user of a command can act on."""

import logging
import os
import warnings


def quiet_upstream() -> None:
    """To be called before torch, megatron-core and transformers are imported."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models come from packages and folders, never from a hub
    # Apex and Transformer Engine are absent; every optional kernel says so.
    warnings.filterwarnings("ignore", module=r"(megatron|torch|transformers)\b")
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    # "No CUDA runtime is found", where a CUDA toolkit is installed without a driver.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # GPTModel's deprecation: models/gpt.py says what we think of it.
    logging.getLogger("megatron").setLevel(logging.ERROR)
    logging.getLogger("genref").setLevel(logging.INFO)
    logging.basicConfig(format="genref: %(message)s", level=logging.WARNING)
