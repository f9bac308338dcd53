"""Rollouts that other systems stamped, read into our records: one module a system, `detect` to tell them apart."""
