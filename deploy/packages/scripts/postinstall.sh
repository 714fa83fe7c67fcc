#!/bin/sh
# After the files of @NAME@ are unpacked. Nothing is enabled or started: the settings come first. A
# service that runs is restarted, so that it uses the new version.
set -e

name=@NAME@
case $name in
    jobsight-server)
        if command -v systemd-sysusers >/dev/null; then
            systemd-sysusers /usr/lib/sysusers.d/jobsight.conf
        elif ! getent passwd jobsight >/dev/null; then
            useradd --system --user-group --no-create-home --home-dir /var/lib/jobsight \
                --shell /usr/sbin/nologin --comment "jobsight server" jobsight
        fi
        install -d -m 0700 -o jobsight -g jobsight /var/lib/jobsight
        install -d -m 0711 /var/spool/jobsight
        install -d -m 2770 -o jobsight -g jobsight /var/spool/jobsight/mail
        ;;
    jobsight-agent)
        install -d -m 0711 /var/spool/jobsight
        ;;
esac

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    case $name in
        jobsight-server) systemctl try-restart jobsight-server.service || true ;;
        jobsight-agent) systemctl try-restart jobsight-agent.service jobs_exporter.service || true ;;
    esac
fi
