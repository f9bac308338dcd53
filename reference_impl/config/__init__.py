"""Recipes: YAML in the shape that NeMo RL users already write, read, merged, checked and handed on as frozen models.

`schema` says which keys there are and what they mean, `loader` turns a file and overrides into a `Recipe`, `errors` holds
the one exception that both raise. Nothing here loads torch or megatron-core, so a wrong recipe is refused within a second.
"""
