"""Silence for what upstream says at import and construction, which no user of a command can act on."""

import faulthandler
import logging
import os
import signal
import warnings

from reference_impl.platforms.megatron_import import import_megatron


def quiet_upstream() -> None:
    """To be called before torch, megatron-core and transformers are imported, in each process that imports them."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models come from packages and folders, never from a hub
    # Apex and Transformer Engine are absent; every optional kernel says so.
    warnings.filterwarnings("ignore", module=r"(megatron|torch|transformers)\b")
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    # "No CUDA runtime is found", where a CUDA toolkit is installed without a driver.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # GPTModel's deprecation (models/gpt.py says what we think of it), and the coordinator's word on each engine that it
    # lets go, which goes to the root logger.
    logging.getLogger("megatron").setLevel(logging.ERROR)
    logging.basicConfig(format="genref: %(message)s", level=logging.ERROR)
    logging.getLogger("genref").setLevel(logging.INFO)


def show_statistics() -> None:
    """Let the engine's lines of statistics through: it logs them to the root logger, at INFO."""
    logging.getLogger().setLevel(logging.INFO)


def quiet_signals() -> None:
    """Ctrl-C without a stack trace: Megatron's coordinator module, when imported, has `faulthandler` print one on signals."""
    import_megatron()
    import megatron.core.inference.data_parallel_inference_coordinator  # noqa: F401

    for number in (signal.SIGINT, signal.SIGTERM):
        faulthandler.unregister(number)
