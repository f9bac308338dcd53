"""The checks, a module a group; each is a function that takes a `Lab` and raises where the backend is wrong."""
