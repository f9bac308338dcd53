"""The `megatron` backend: Megatron Core's own dynamic inference engine behind the generation contract.

One request walks through these files in this order: `backend` takes a batch apart, `requests` turns each row into
Megatron's sampling parameters, `direct` or `coordinator` drives the engine that `build` made, `stopping` ends a sequence,
`sampling` chooses its tokens, `completions` reads the finished record, and `backend` puts the batch together again.
"""
