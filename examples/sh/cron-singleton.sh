#!/bin/sh
# A cron job that never runs twice. If the previous run still holds the lock, this one reports it and
# exits with 0. After a power failure or a kill, the next run takes over.
#
#   */5 * * * *  cron-singleton.sh /var/lib/import /usr/local/bin/import
#
# For several machines, use `tenant:/jobs/import` or `s3://bucket/import` instead of the directory.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 WHERE COMMAND [ARGUMENT…]" >&2
    exit 2
fi
where=$1
shift

# -n: do not wait. -E 0: exit with 0 if the lock is held. Otherwise the exit code is that of the job.
exec tenure run -n -E 0 --purpose "cron: $1" "$where" -- "$@"
