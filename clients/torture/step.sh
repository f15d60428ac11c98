#!/bin/sh
# One step of a worker under its lock: step.sh FENCE LANGUAGE. Appends to $LOG, then replaces $COUNTER.
set -e
value=$(($(cat "$COUNTER") + 1))
echo "$value $1 $2" >> "$LOG"
echo "$value" > "$COUNTER.$$"
mv "$COUNTER.$$" "$COUNTER"
