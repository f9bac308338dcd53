"""For all tests: Hypothesis may take its time, since a machine that is busy is not a failure."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
