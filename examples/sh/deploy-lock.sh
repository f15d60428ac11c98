#!/bin/sh
# One deploy of a service at a time, from whichever machine.
#
#   export TENURE_URL=tenure://locks.example:50051
#   deploy-lock.sh web 1.4.2 ./switch.sh
#
# Who comes second waits in line for ten minutes at most, and sees for whom. If the lock is lost, the steps are stopped with
# everything that they started, before anybody else can deploy.
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
# … build, upload: what may happen twice …

# Right before the step that must not: is the lock still mine? The command gets the fence, for whatever stores the result.
tenure fence check > /dev/null
VERSION=$version "$@"
echo "$service is $version"
