#!/usr/bin/env bash
# The walk-through of the README: build an image, take a wrong turn, go back, take the right one.
# Prints each command and its output. Needs root and `waypoint setup`; WAYPOINT names the program.
set -euo pipefail
cd "$(dirname "$0")/.."
WAYPOINT=${WAYPOINT:-waypoint}
NAME=webapp-$$
trap '"$WAYPOINT" cleanup "$NAME" --force >/dev/null 2>&1 || true' EXIT

run() { # print a command line as it would be typed, then run it
    local word line=waypoint
    for word in "$@"; do
        if [[ $word == *[!A-Za-z0-9_./:=-]* ]]; then line+=" '$word'"; else line+=" $word"; fi
    done
    echo "\$ ${line//$NAME/webapp}"
    local status=0
    "$WAYPOINT" "$@" | sed "s/$NAME/webapp/" || status=$?
    if ((status)); then echo "(exit code $status)"; fi
    echo
}

if ! "$WAYPOINT" base list --quiet | tr , '\n' | grep -qx debian:bookworm; then
    run base bootstrap debian:bookworm --quiet
fi
run build examples/webapp --name "$NAME" 2>/dev/null # the progress of the build, on standard error, is long
run exec "$NAME" -- '. prepare'
run exec "$NAME" -- state
run snapshot "$NAME" ready
run exec "$NAME" -- try_fix_a
run exec "$NAME" -- state
run restore "$NAME" ready
run exec "$NAME" -- state
run exec "$NAME" -- try_fix_b
run exec "$NAME" -- state
run snapshot "$NAME" fixed
run tree "$NAME"
