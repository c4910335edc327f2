#!/bin/sh
# After a removal or an upgrade. Only dpkg --purge removes the state of the relay: snapshots, and decisions of operators.
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true # as in postinstall.sh
fi
if [ "$1" = purge ]; then
	# The directory of a unit with DynamicUser is in private, and its name outside is a link.
	rm -rf "$DPKG_ROOT/var/lib/private/tender" "$DPKG_ROOT/var/lib/tender"
	rmdir "$DPKG_ROOT/etc/tender" 2>/dev/null || true # it may have files of the operator
fi
