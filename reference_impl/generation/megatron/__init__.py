"""The `megatron` backend: Megatron Core's own dynamic inference engine behind the generation contract.

One request walks through these files in this order: `backend` takes a batch apart, `requests` turns each row into
Megatron's sampling parameters, `drivers` has the engine that `build` made work on it, `sampling` chooses its tokens,
`stopping` ends the sequence, `completions` reads the finished record, and `backend` puts the batch together again.
"""

from reference_impl.platforms.megatron_import import import_megatron

# First of all: the modules of this package import parts of it at their top.
import_megatron()
