#!/bin/sh
# Before a removal ("remove" of dpkg, 0 of rpm) or an upgrade, during which the service runs on.
set -e
case "$1" in
remove | 0)
	if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
		systemctl disable --now tender.service || true # the removal goes on
	fi
	;;
esac
