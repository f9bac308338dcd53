"""Generation: the contract that a backend fulfils, the registry of backends, and the backends."""
