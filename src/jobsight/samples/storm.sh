#!/bin/sh
# Starts programs that live a few milliseconds, for eleven seconds.
end=$(($(date +%s) + 11))
while [ "$(date +%s)" -lt $end ]; do
    for word in one two three four five six seven eight; do
        /bin/true
        echo $word | grep -q o
        expr length $word > /dev/null
    done
done
