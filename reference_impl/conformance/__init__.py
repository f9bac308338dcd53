"""Checks that hold any generation backend to the contract: for its author, for pytest, and as `genref conformance`."""
