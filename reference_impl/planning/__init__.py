"""Sizing: what a recipe will do with memory and how many requests it will run at once, computed from the file alone.

The arithmetic is that of megatron-core's `DynamicInferenceContext`, rounding included. Nothing here imports torch.
"""
