"""A small guest with cgroup v2 alone, for what the machine's own kernel cannot show.

`python -m tests.guest run` boots it under qemu without KVM and runs a command inside.
"""
