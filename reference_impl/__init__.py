"""A generation backend and a staleness tracker for RL post-training on Megatron Core, explained by docs that run.

Importing this package changes nothing: no CUDA name is answered, no process group is made, no heavy library is
loaded before something asks for it.
"""

__version__ = "0.1.0"
