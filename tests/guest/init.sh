#!/bin/bash
# Runs one command in the guest and hands its results out. It is pid 1 where the kernel was told
# so, with nothing else running; else systemd starts it as a service.
# Disks: vda the system, vdb a tar archive with the project, vdc takes a tar archive of /out.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
if [ $$ = 1 ]; then
    mountpoint -q /proc || mount -t proc proc /proc
    mountpoint -q /sys || mount -t sysfs sys /sys
    mountpoint -q /dev || mount -t devtmpfs dev /dev
    mkdir -p /dev/pts /dev/shm
    mount -t devpts devpts /dev/pts
    mount -t tmpfs shm /dev/shm
    mount -t tmpfs run /run
    mount -t tmpfs tmp /tmp
    chmod 1777 /tmp /dev/shm
    mount -t cgroup2 none /sys/fs/cgroup
    mount -o remount,rw /
fi
exec >/dev/ttyS0 2>&1
hostname guest
echo "127.0.0.1 localhost guest" >/etc/hosts
ip link set lo up
# With 127.0.0.1 alone getaddrinfo finds no address family configured and Slurm resolves nothing.
ip address add 192.0.2.1/32 dev lo

mkdir -p /project /out
tar --extract --file=/dev/vdb --directory=/project
cd /project || exit
export PYTHONPATH=/opt/python:/project/src:/project PYTHONDONTWRITEBYTECODE=1 JOBSIGHT_GUEST=1
echo "guest: Linux $(uname -r), cgroup controllers: $(cat /sys/fs/cgroup/cgroup.controllers)"
timeout --kill-after=20 "$(cat .guest/seconds)" bash .guest/command 2>&1 | tee /out/output.txt
status=${PIPESTATUS[0]}
echo "guest: the command ended with $status, $(cut -d. -f1 /proc/uptime) s after the start"
echo $status >/out/exit-status
tar --create --file=/dev/vdc --directory=/out .
sync
echo o >/proc/sysrq-trigger
sleep 10
