#!/usr/bin/env bash
# Makes an OCI image of bin/linux_ARCH/tender for each ARCH, and of them one index, in an OCI
# layout: no daemon, no root and no namespaces are needed. All times are DATE, so that the same
# commit makes the same image, with the same CA certificates on this host.
#
#	deploy/image/build.sh LAYOUT VERSION COMMIT DATE ARCH…
set -euo pipefail
if (($# < 5)); then
	echo "usage: $0 LAYOUT VERSION COMMIT DATE ARCH…" >&2
	exit 2
fi
layout=$1 version=$2 commit=$3 date=$4
shift 4
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

user=65532
certificates=/etc/ssl/certs/ca-certificates.crt
for tool in umoci jq; do
	command -v $tool >/dev/null || { echo "$0: $tool is missing: make deps-image installs Debian's" >&2; exit 1; }
done
[[ -s $certificates ]] || { echo "$0: $certificates is missing: make deps-image installs Debian's ca-certificates" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
utc=$(date -u -d "$date" +%Y-%m-%dT%H:%M:%SZ)

# layer ARCH makes the one layer: files of root, and the directory for snapshots, of the user.
layer() {
	local root=$work/root
	rm -rf "$root"
	mkdir -p "$root"/etc/ssl/certs "$root"/usr/local/bin "$root"/usr/share/doc/tender "$root"/var/lib/tender
	cp -r deploy/image/root/. "$root"
	cp $certificates "$root"/etc/ssl/certs
	cp LICENSE "$root"/usr/share/doc/tender
	cp "bin/linux_$1/tender" "$root"/usr/local/bin
	chmod -R u=rwX,go=rX "$root"
	chmod 700 "$root"/var/lib/tender
	local pack=(tar --sort=name --format=ustar --numeric-owner --mtime="$utc" -C "$root" -f "$work/layer.tar")
	"${pack[@]}" --owner=0 --group=0 --exclude=var/lib/tender -c etc usr var
	"${pack[@]}" --owner=$user --group=$user -r var/lib/tender
}

# The same as in the Dockerfile; a test compares them.
config=(
	--config.user $user:$user
	--config.env PATH=/usr/local/bin
	--config.workingdir /
	--config.entrypoint /usr/local/bin/tender
	--config.cmd serve
	--config.exposedports 18000/tcp
	--config.stopsignal SIGTERM
	--config.label org.opencontainers.image.title=tender
	--config.label "org.opencontainers.image.description=An xDS fan-out relay"
	--config.label org.opencontainers.image.source=https://github.com/xdstender/tender
	--config.label org.opencontainers.image.licenses=Apache-2.0
	--config.label "org.opencontainers.image.version=$version"
	--config.label "org.opencontainers.image.revision=$commit"
	--config.label "org.opencontainers.image.created=$utc"
)

rm -rf "$layout"
mkdir -p "$(dirname "$layout")"
umoci init --layout "$layout"
for arch; do
	layer "$arch"
	umoci new --image "$layout:$arch"
	umoci raw add-layer --image "$layout:$arch" --history.created "$utc" --history.created_by deploy/image/build.sh "$work/layer.tar"
	umoci config --image "$layout:$arch" --no-history --os linux --architecture "$arch" --created "$utc" "${config[@]}"
done
umoci gc --layout "$layout"

# One index of all of them is what has the version as its name.
jq -c '{schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json", manifests: [.manifests[] | {
	mediaType, digest, size, platform: {os: "linux", architecture: .annotations["org.opencontainers.image.ref.name"]}}]}' \
	"$layout/index.json" >"$work/index"
digest=$(sha256sum "$work/index" | cut -d ' ' -f 1)
jq -nc --arg digest "sha256:$digest" --argjson size "$(stat -c %s "$work/index")" --arg version "$version" '{schemaVersion: 2, manifests: [{
	mediaType: "application/vnd.oci.image.index.v1+json", digest: $digest, size: $size, annotations: {"org.opencontainers.image.ref.name": $version}}]}' \
	>"$layout/index.json"
cp "$work/index" "$layout/blobs/sha256/$digest"
chmod -R u=rwX,go=rX "$layout"

echo "$layout: tender:$version for linux/$(IFS=,; echo "$*"), sha256:$digest"
