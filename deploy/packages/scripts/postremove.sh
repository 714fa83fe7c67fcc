#!/bin/sh
# After the files of @NAME@ are removed. Settings, store, spool and user stay, until dpkg purges the
# package; rpm has no such step (docs/upgrade.md has the commands).
set -e

name=@NAME@
if [ "${1:-}" = purge ]; then
    case $name in
        jobsight-server)
            rm -rf /var/lib/jobsight /var/cache/jobsight /var/spool/jobsight/mail
            # Of `jobsight setup`.
            rm -f /etc/systemd/system/jobsight-server.socket.d/jobsight-setup.conf
            rmdir /etc/systemd/system/jobsight-server.socket.d 2>/dev/null || true
            rmdir /var/spool/jobsight 2>/dev/null || true
            if getent passwd jobsight >/dev/null; then
                userdel jobsight || true
            fi
            ;;
        jobsight-agent)
            rm -rf /run/jobsight
            find /var/spool/jobsight -mindepth 1 -maxdepth 1 ! -name mail -exec rm -rf {} + \
                2>/dev/null || true
            rmdir /var/spool/jobsight 2>/dev/null || true
            ;;
        jobsight)
            # Tokens and certificates that were put there; dpkg removes its own file.
            rm -rf /etc/jobsight
            ;;
    esac
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
# rpm does not remove the directories of files. What a site added itself stays. Not after an upgrade,
# nor when one was refused (abort-upgrade).
case ${1:-} in
    remove | purge | 0)
        for directory in /opt/jobsight /usr/share/jobsight /usr/share/doc/jobsight; do
            find "$directory" -depth -type d -empty -delete 2>/dev/null || true
        done
        ;;
esac
