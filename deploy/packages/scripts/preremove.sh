#!/bin/sh
# Before the files of @NAME@ are removed. dpkg calls it with "remove" or "upgrade", rpm with the
# number of versions that remain.
set -e

name=@NAME@
case ${1:-} in
    remove | 0) ;;
    *) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
    case $name in
        jobsight-server)
            systemctl --no-reload disable --now jobsight-server.socket jobsight-server.service || true ;;
        jobsight-agent)
            systemctl --no-reload disable --now jobsight-agent.service jobs_exporter.service || true
            # One for each job that runs: a prolog starts them, nothing enables them.
            systemctl --no-reload stop 'softwareaccounting@*.service' || true
            ;;
    esac
fi
