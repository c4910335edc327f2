// Package image contains the two ways to build an image of Tender: build.sh, which make image runs and which
// needs no daemon, and a Dockerfile. Its tests compare the two, and with -image run the binary
// of a built image (make imagetest).
package image
