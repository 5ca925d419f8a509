"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow, not wrong: no test fails for the time an example took.
settings.register_profile("edge-infer", deadline=None)
settings.load_profile("edge-infer")
