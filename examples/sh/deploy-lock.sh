#!/bin/sh
# One deploy of a service at a time, across all machines.
#
#   export TENURE_URL=tenure://locks.example:50051
#   deploy-lock.sh web 1.4.2 ./switch.sh
#
# A second deploy waits in the queue for up to ten minutes and shows the holder. If the lock is lost,
# the command and all its child processes are stopped before another deploy can start.
set -eu

if [ "${TENURE_HELD:-}" != 1 ]; then
    if [ $# -lt 3 ]; then
        echo "usage: $0 SERVICE VERSION COMMAND [ARGUMENT…]" >&2
        exit 2
    fi
    # The script calls itself under the lock.
    exec tenure run -w 10m --ttl 20s --purpose "$1 $2" "deploy:/$1" -- "$0" "$@"
fi

service=$1 version=$2
shift 2
echo "deploying $service $version, fence $TENURE_FENCE"
# … build, upload: steps that may run twice …

# Check the lock right before the step that must not run twice. The command gets the fence and passes
# it to the system that stores the result.
tenure fence check > /dev/null
VERSION=$version "$@"
echo "$service is $version"
