package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
)

// signFile signs a file. It writes FILE.sig in the format of cosign sign-blob --output-signature, and
// FILE.sigstore.json in the format of its --bundle with a key and without a transparency log. It also writes the public
// key to FILE.pub; users must compare it with a copy from another source.
func (o options) signFile(name string, w io.Writer) error {
	key, err := readKey(o.key)
	if err != nil {
		return fmt.Errorf("signing key %s: %w", o.key, err)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(content)
	// A nil source of randomness selects RFC 6979: equal files have equal signatures.
	signature, err := key.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return fmt.Errorf("sign %s: %w", name, err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("public key of %s: %w", o.key, err)
	}
	bundle, err := json.Marshal(newBundle(public, digest[:], signature))
	if err != nil {
		return err
	}
	err = errors.Join(
		writeFile(name+".sig", []byte(base64.StdEncoding.EncodeToString(signature))),
		writeFile(name+".sigstore.json", bundle),
		writeFile(name+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
	)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: signed, public key sha256:%x\n", name, sha256.Sum256(public))
	return err
}

// readKey reads a private key of ECDSA P-256 in PEM, as SEC 1 or PKCS #8.
func readKey(name string) (*ecdsa.PrivateKey, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(text)
	for block != nil && block.Type == "EC PARAMETERS" { // openssl ecparam writes this block before the key
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil, errors.New("no PEM block; use a key of openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256")
	}
	var parsed any
	switch block.Type {
	case "EC PRIVATE KEY":
		parsed, err = x509.ParseECPrivateKey(block.Bytes)
	case "PRIVATE KEY":
		parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("PEM block %q; use an unencrypted EC PRIVATE KEY or PRIVATE KEY", block.Type)
	}
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("key of type %T is not ECDSA P-256", parsed)
	}
	return key, nil
}

// The parts of a Sigstore bundle with a signature by a key.
//
// Source: https://github.com/sigstore/protobuf-specs, sigstore_bundle.proto, version 0.3.
type (
	bundle struct {
		MediaType    string       `json:"mediaType"`
		Verification verification `json:"verificationMaterial"`
		Message      message      `json:"messageSignature"`
	}
	verification struct {
		PublicKey publicKey `json:"publicKey"`
	}
	publicKey struct {
		Hint string `json:"hint"`
	}
	message struct {
		Digest    digest `json:"messageDigest"`
		Signature []byte `json:"signature"`
	}
	digest struct {
		Algorithm string `json:"algorithm"`
		Digest    []byte `json:"digest"`
	}
)

// newBundle returns the bundle of a signature. public is the DER encoding of the public key; its digest becomes the
// hint that identifies the key, as in cosign.
func newBundle(public, sum, signature []byte) bundle {
	hint := sha256.Sum256(public)
	return bundle{
		MediaType:    "application/vnd.dev.sigstore.bundle.v0.3+json",
		Verification: verification{publicKey{base64.StdEncoding.EncodeToString(hint[:])}},
		Message:      message{digest{"SHA2_256", sum}, signature},
	}
}
