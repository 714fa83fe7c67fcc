#!/bin/sh
# Before the files of @NAME@ @VERSION@ are unpacked. dpkg calls it with "install" or "upgrade", rpm
# with the number of versions that will be installed.
set -e

new=@VERSION@
installed=""
if [ -r /opt/jobsight/VERSION ]; then
    read -r installed </opt/jobsight/VERSION
fi
# The store of a newer version may have a schema that this one does not know.
if [ -n "$installed" ] && [ "$installed" != "$new" ] && [ -z "${JOBSIGHT_ALLOW_DOWNGRADE:-}" ] \
    && [ "$(printf '%s\n%s\n' "$installed" "$new" | sort -V | tail -n 1)" = "$installed" ]; then
    echo "jobsight: version $installed is installed, and a downgrade to $new is refused, because the" \
        "store may have been migrated; remove the packages and restore a backup of that version, or" \
        "set JOBSIGHT_ALLOW_DOWNGRADE=1" >&2
    exit 1
fi
