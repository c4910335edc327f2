// Package image has what makes an image of Tender: build.sh, which make image runs and which
// needs no daemon, and a Dockerfile. Its tests hold the two to each other, and with -image
// start what is in an image (make imagetest).
package image
