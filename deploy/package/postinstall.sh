#!/bin/sh
# After an installation or an upgrade. The service is neither enabled nor started, because TENDER_ORIGIN has no default. An
# upgrade does not restart it, so that an upgrade of all hosts does not end the streams of all relays at once.
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true # a host without a system manager that answers
fi
