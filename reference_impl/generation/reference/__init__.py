"""The `reference` backend: a paged, continuously batching engine that is small enough to read in an evening.

One request walks through these files in this order: `backend` takes a batch apart and owns the weights, `engine` takes one
step, for which `scheduler` says who runs and `blocks` says where, `batch` lays that out as tensors, `model` runs the
forward pass over `weights` and the cache in `kv`, `sampling` chooses the tokens, and `engine` ends what is finished.
"""
