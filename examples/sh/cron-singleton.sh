#!/bin/sh
# A cron job that never runs twice: a late one says that somebody is at it, and goes home with success. If the machine loses
# power or the job is killed, the next run takes over.
#
#   */5 * * * *  cron-singleton.sh /var/lib/import /usr/local/bin/import
#
# For several machines, put `tenant:/jobs/import` or `s3://bucket/import` in place of the directory.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 WHERE COMMAND [ARGUMENT…]" >&2
    exit 2
fi
where=$1
shift

# -n: do not wait. -E 0: "held" is no failure. Everything else is the job's own exit code.
exec tenure run -n -E 0 --purpose "cron: $1" "$where" -- "$@"
