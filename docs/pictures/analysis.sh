#!/bin/sh
# The job of the pictures: two programs pack data side by side, many short ones look at it, and one
# takes memory while nothing else runs.
for name in one two; do
    { head -c 60M /dev/urandom > $name && gzip -6 -k $name; } &
done
wait
for number in $(seq 400); do
    head -c 65536 one | cksum >> sums
    expr "$number" % 7 > /dev/null
done
python3 memory.py
