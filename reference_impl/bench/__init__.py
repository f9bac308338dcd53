"""Benchmarks: speed as a ratio against a peer, measured in turn in one run, since machines differ and drift."""
