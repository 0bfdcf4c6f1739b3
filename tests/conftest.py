"""Settings for the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# Tests run side by side: a numerical library that takes every core for itself slows all of them to a crawl.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# The same examples every time, so that a failure is somebody's change and not somebody's luck;
# FANFOLD_EXPLORE=1 looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=300)
settings.load_profile("explore" if os.environ.get("FANFOLD_EXPLORE") else "same")
