"""Model calls in provider batches: the executor, its waves, the lifecycle of a batch, recovery after a crash."""
