# Everything runs from here; make help lists it. Go alone is needed, and for the
# tests what make deps installs.

.DEFAULT_GOAL := help

GO        ?= go
PKG       ?= ./...
TIMEOUT   ?= 20m
RACECOUNT ?= 5
FUZZTIME  ?= 10s
BENCH     ?= .
BENCHTIME ?= 1s
# Which scenarios make bench runs, as in S1,S3 (all)
SCENARIO  ?=
# How long rounds of faults go on, under how many clients, and which they are (others each time)
SOAK      ?= 5m
CLIENTS   ?= 500
SEED      ?= 0
# Part of the names of faults, to have only these
ONLY      ?=
# More arguments, as in: make demo ARGS='--clients 1000'
ARGS      ?=

# Debian packages are installed as root.
SUDO = $(if $(filter 0,$(shell id -u)),,sudo)

# The date is that of the commit: the same commit makes the same binary.
VERSION ?= $(or $(shell git describe --tags --always --dirty 2>/dev/null),dev)
COMMIT  ?= $(or $(shell git rev-parse --short=12 HEAD 2>/dev/null | grep -v HEAD),unknown)
DATE    ?= $(or $(shell git log -1 --format=%cI 2>/dev/null),unknown)
LDFLAGS  = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)

# The linter is built with this Go, once for each version: its name says which.
LINT_VERSION := v2.15.0
LINT_MODULE  := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
LINT         := .bin/golangci-lint-$(LINT_VERSION)

# A client of the tests, with the packages that its lock file names. A copy of that
# file says what is installed.
GRPC_JS := relay/testdata/grpc-js

.PHONY: help build test race lint fuzz soak bench microbench demo cover deps

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## Build bin/tender, without cgo
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/tender ./cmd/tender

test: deps ## Run every test with the race detector, in random order
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout $(TIMEOUT) $(PKG)
	$(if $(filter ./...,$(PKG)),cd bench && CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout $(TIMEOUT) ./...)

race: deps ## Run the tests RACECOUNT times over (5), to find races that are rare
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -count=$(RACECOUNT) -timeout $(TIMEOUT) $(PKG)

lint: $(LINT) ## Check formatting, go vet and golangci-lint
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi
	$(GO) vet $(PKG)
	$(LINT) run $(PKG)
	$(if $(filter ./...,$(PKG)),cd bench && $(GO) vet ./... && ../$(LINT) run ./...)

fuzz: ## Run each fuzz target for FUZZTIME (10s)
	@for dir in . $(if $(filter ./...,$(PKG)),bench); do \
		(cd $$dir && $(GO) list -f '{{$$p := .}}{{range .TestGoFiles}}{{$$p.ImportPath}} {{$$p.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$$p.ImportPath}} {{$$p.Dir}}/{{.}}{{"\n"}}{{end}}' $(PKG)) \
		| while read -r package file; do \
			sed -n "s|^func \(Fuzz[A-Za-z0-9_]*\)(.*|$$dir $$package \1|p" "$$file"; \
		done; \
	done | { any=; while read -r dir package target; do \
		any=1; echo "$$package $$target"; \
		(cd $$dir && $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null) || exit 1; \
	done; test -n "$$any" || { echo "no fuzz target in $(PKG)"; exit 1; }; }

soak: ## Let everything fail at random for SOAK (5m), under CLIENTS (500); SEED=7 repeats a run
	CGO_ENABLED=1 $(GO) test -race -count=1 -v -timeout 0 -run '^TestSoak$$' ./relay/soak -for $(SOAK) -clients $(CLIENTS) -seed $(SEED) -only '$(ONLY)'

bench: build ## Measure the relay beside limits and peers: all scenarios, or SCENARIO=S1
	cd bench && $(GO) build -trimpath -buildvcs=false -o ../bin/bench . && ../bin/bench -scenario '$(SCENARIO)' -commit '$(COMMIT)' $(ARGS)

microbench: ## Run the benchmarks of functions that BENCH matches (all), each for BENCHTIME (1s)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

demo: build ## Show the relay at work: an origin, the relay and 200 clients
	@bin/tender demo $(ARGS)

cover: deps ## Measure what the tests reach, into cover.out
	$(GO) test -coverpkg=./... -coverprofile=cover.out -timeout $(TIMEOUT) $(PKG)
	@$(GO) tool cover -func=cover.out | tail -n 1

deps: ## Install what the tests need beside Go: a C compiler, and gRPC for Node.js and Python
	@missing=; \
	gcc -E -x c -include stdlib.h /dev/null >/dev/null 2>&1 || missing="$$missing gcc libc6-dev"; \
	command -v node >/dev/null || missing="$$missing nodejs"; \
	command -v npm >/dev/null || missing="$$missing npm"; \
	/usr/bin/python3 -I -c 'import grpc' 2>/dev/null || missing="$$missing python3-grpcio"; \
	if [ -n "$$missing" ]; then \
		$(SUDO) apt-get update && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing || exit 1; \
	fi
	@cd $(GRPC_JS) && { cmp -s package-lock.json node_modules/.installed || { npm ci && cp package-lock.json node_modules/.installed; }; }

$(LINT):
	@mkdir -p $(@D)/install
	GOBIN=$(CURDIR)/$(@D)/install GOFLAGS= CGO_ENABLED=0 $(GO) install $(LINT_MODULE)@$(LINT_VERSION)
	@mv $(@D)/install/golangci-lint $@ && rmdir $(@D)/install
