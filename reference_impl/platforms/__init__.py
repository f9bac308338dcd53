"""Platforms: what Megatron Core needs to run where it was not written for, above all on a CPU."""
