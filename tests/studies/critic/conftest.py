"""Small matrices are only slowed down by threads, most of all on machines that share their cores."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
