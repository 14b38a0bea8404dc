# approvald: the two commands to start with are `make demo` and `make test`; both need Go and nothing else.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
BIN     ?= ./bin
ARGS    ?=
FUZZTIME ?= 10s
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

STATICCHECK = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK = $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0
# Of the manual pages.
DATE       ?= $(shell git log -1 --format=%cs 2>/dev/null || date -u +%F)
ROOT        = $(DESTDIR)$(PREFIX)
# Debian's zsh looks elsewhere for what packages bring than for what the machine's own people install.
ZSHDIR      = $(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
LDFLAGS     = -s -w $(if $(VERSION),-X main.version=$(VERSION))

# What `make test-all` needs besides Go. Each is named when it is missing: a test that cannot run is a failure.
TEST_ALL_TOOLS = gcc strace unshare nsenter setpriv mount systemd-analyze useradd pgrep man mandoc zsh nginx caddy chromium chromedriver

.PHONY: all build demo test test-all check fuzz bench install clean

all: build

build: ## BIN/approvald, static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o '$(BIN)/approvald' ./cmd/approvald

demo: build ## the whole story on a page in the browser; ARGS=--terminal on the terminal, ARGS=--auto without a person
	'$(BIN)/approvald' demo $(ARGS)

test: ## what a fresh clone can run: Go and nothing else
	$(GO) test ./...

test-all: ## everything: race detector, root, strace, small file systems
	@missing=; \
	for tool in $(TEST_ALL_TOOLS); do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	[ "$$(id -u)" = 0 ] || missing="$$missing root"; \
	[ -z "$$missing" ] || { echo "make test-all: missing:$$missing" >&2; exit 1; }
	$(GO) test ./internal/dispatch -run Simulation -sim.histories=10000
	@# A program under the race detector sleeps a second before it ends; the tests start thousands. Those that are parallel mostly wait
	@# for processes: more of them at a time than there are cores take less time together.
	GORACE=atexit_sleep_ms=0 $(GO) test -race -tags all -parallel 8 -timeout 30m ./...

check: ## formatting, vet, staticcheck, known vulnerabilities, tidy modules
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags all ./...
	$(STATICCHECK) ./...
	$(STATICCHECK) -tags all ./...
	$(GO) mod verify
	$(GO) mod tidy -diff
	@if curl --silent --fail --max-time 10 --output /dev/null https://vuln.go.dev/index/db.json; then \
		echo '$(GOVULNCHECK) ./...'; $(GOVULNCHECK) ./...; \
	else echo 'govulncheck left out: its database at vuln.go.dev cannot be reached from here'; fi

fuzz: ## each fuzz target for FUZZTIME
	@for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

bench: ## the figures that the design promises: end to end first, then package by package
	$(GO) test -run '^$$' -bench . -skip 'TenThousandPending|TapAmongStrangers' -benchtime 100x ./internal/e2e
	$(GO) test -run '^$$' -bench 'TenThousandPending|TapAmongStrangers' -benchtime 1x ./internal/e2e
	$(GO) test -run TestFloodKeepsThePace -v -count 1 ./internal/dispatch -flood.requests=10000
	$(GO) test -run '^$$' -bench TapDuringFlood -benchtime 500x ./internal/dispatch
	$(GO) test -run '^$$' -bench . -benchtime 1s $$($(GO) list ./... | grep -v /internal/e2e)

# Everything that is installed lies below DESTDIR/PREFIX; a package has PREFIX=/usr. BIN is where the program is built.
install: build ## into DESTDIR/PREFIX: program, units, users, completions, manual pages
	install -D -m 0755 '$(BIN)/approvald' '$(ROOT)/bin/approvald'
	install -d '$(ROOT)/lib/systemd/system' '$(ROOT)/lib/sysusers.d' '$(ROOT)/lib/tmpfiles.d'
	for unit in deploy/systemd/*.service deploy/systemd/*.socket; do \
		[ -e "$$unit" ] || continue; \
		sed 's#/usr/local/bin/#$(PREFIX)/bin/#' "$$unit" >'$(BIN)/unit' && \
		install -m 0644 '$(BIN)/unit' "$(ROOT)/lib/systemd/system/$${unit##*/}" || exit 1; \
	done
	install -m 0644 deploy/systemd/approvald.sysusers '$(ROOT)/lib/sysusers.d/approvald.conf'
	install -m 0644 deploy/systemd/approvald.tmpfiles '$(ROOT)/lib/tmpfiles.d/approvald.conf'
	install -d '$(ROOT)/share/bash-completion/completions' '$(ROOT)/share/zsh/$(ZSHDIR)' '$(ROOT)/share/fish/vendor_completions.d'
	'$(BIN)/approvald' completion bash >'$(ROOT)/share/bash-completion/completions/approvald'
	'$(BIN)/approvald' completion zsh >'$(ROOT)/share/zsh/$(ZSHDIR)/_approvald'
	'$(BIN)/approvald' completion fish >'$(ROOT)/share/fish/vendor_completions.d/approvald.fish'
	umask 022; '$(BIN)/approvald' man --dir '$(ROOT)/share/man' --date '$(DATE)' --configuration docs/configuration.md

clean:
	rm -rf bin
