#!/bin/sh
# A worker that uses the tenure command: worker.sh BINARY.
while true; do
    "$1" run --quiet --ttl 2s vol:/torture/counter -- sh -c "sh '$(dirname "$0")/step.sh' \"\$TENURE_FENCE\" command" || sleep 0.1
done
