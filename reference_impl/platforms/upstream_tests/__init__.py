"""Megatron-LM's own inference unit tests on the CPU platform: `python -m reference_impl.platforms.upstream_tests DIR`.

What only upstream's tests ask of a GPU is answered here and not by {py:mod}`~reference_impl.platforms.cpu`.
"""
