#!/bin/sh
# The job of the pictures: two programs pack data side by side, many short ones look at it, and one
# takes memory while nothing else runs.
pack() {
    head -c 120M /dev/urandom > "$1"
    gzip -6 -k "$1"
    rm "$1.gz"
}
pack one &
pack two &
wait
for number in $(seq 400); do
    head -c 65536 one | cksum >> sums
    expr "$number" % 7 > /dev/null
done
python3 memory.py
