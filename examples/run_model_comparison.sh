#!/usr/bin/env bash
# The documents' model comparison: every ordered pair of models plays on the same scenarios (see `fanfold secrets compare --help`).
#
#   examples/run_model_comparison.sh --batch-service openai-conversation --interactions 20 --messages 3
#
# Which models: --models A,B,..., else $FANFOLD_MODEL in two styles, else those of the batch service.
set -euo pipefail

models=()
if [[ -n "${FANFOLD_MODEL:-}" && " $* " != *" --models"[\ =]* ]]; then
    models=(--models "$FANFOLD_MODEL" --style regular,aggressive)
fi
exec fanfold secrets compare ${models[@]+"${models[@]}"} "$@"
