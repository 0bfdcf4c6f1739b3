#!/bin/sh
# What the container runs: `fanfold` with the words behind the image's name, or the demo and its page without any.
set -e

if [ $# -eq 0 ]; then
    [ -e examples/tickets.toml ] || fanfold examples tickets
    fanfold run examples/tickets.toml --run demo
    set -- view
fi
if [ "$1" = view ]; then
    shift
    # Others reach the page only through the port that `docker run -p` publishes, and only with the token.
    FANFOLD_VIEW_TOKEN="${FANFOLD_VIEW_TOKEN:-$(python -c 'import secrets; print(secrets.token_urlsafe(24))')}"
    export FANFOLD_VIEW_TOKEN
    echo "open http://127.0.0.1:8000/#token=$FANFOLD_VIEW_TOKEN"
    set -- view --host 0.0.0.0 --port 8000 --allow-host 127.0.0.1 --allow-host localhost --no-open "$@"
fi
exec fanfold "$@"
