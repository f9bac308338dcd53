"""Reinforcement learning on one shared model: environments, rollouts, GRPO, and what makes tokens stale."""
