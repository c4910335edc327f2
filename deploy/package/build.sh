#!/usr/bin/env bash
# Makes OUT.deb and OUT.rpm of BINARY, which is tender for linux/ARCH, and of SHARE, the archive with manual pages and
# completions. The same files, VERSION and DATE make the same packages. NFPM is the command nfpm.
#
#	deploy/package/build.sh BINARY ARCH VERSION DATE SHARE OUT
set -euo pipefail
if (($# != 6)); then
	echo "usage: $0 BINARY ARCH VERSION DATE SHARE OUT" >&2
	exit 2
fi
binary=$(realpath "$1") arch=$2 version=$3 date=$4 share=$(realpath "$5") out=$(realpath "$6")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" --no-same-owner -xzf "$share"
# The unit of the repository is for a binary in /usr/local.
sed 's|^ExecStart=/usr/local/bin/|ExecStart=/usr/bin/|' deploy/systemd/tender.service >"$work/tender.service"

variables=$(${GO:-go} run ./deploy/release package -date "$date" "$version")
eval "$variables"
export ARCH=$arch BINARY=$binary WORK=$work PACKAGE_VERSION SOURCE_DATE_EPOCH
for format in deb rpm; do
	${NFPM:-nfpm} package --config deploy/package/nfpm.yaml --packager $format --target "$out.$format" >/dev/null
	chmod 644 "$out.$format"
	echo "$out.$format: tender $PACKAGE_VERSION for linux/$arch"
done
