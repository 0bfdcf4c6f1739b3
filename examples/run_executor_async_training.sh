#!/usr/bin/env bash
# The document's production training: a search over workflows with 100 workers and 100,000 episodes.
#
#   bash examples/run_executor_async_training.sh
#   TOTAL_EPISODES=5000 bash examples/run_executor_async_training.sh --seed 1
#
# What follows is handed on to `fanfold run workflow`.
set -euo pipefail

exec python -m fanfold.legacy.executor_async_train_workflow_rl \
    --n-workers "${N_WORKERS:-100}" \
    --total-episodes "${TOTAL_EPISODES:-100000}" \
    --episodes-per-update "${EPISODES_PER_UPDATE:-100}" \
    --max-episodes-per-workflow "${MAX_EPISODES_PER_WORKFLOW:-500}" \
    --red-agent "${RED_AGENT:-B_lineAgent}" \
    --alignment-lambda "${ALIGNMENT_LAMBDA:-30.0}" \
    --compliance-threshold "${COMPLIANCE_THRESHOLD:-0.95}" \
    "$@"
