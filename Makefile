# approvald: the two commands to start with are `make demo` and `make test`; both need Go and nothing else.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
ARGS    ?=
FUZZTIME ?= 10s
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

STATICCHECK = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK = $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0
LDFLAGS     = -s -w $(if $(VERSION),-X main.version=$(VERSION))

# What `make test-all` needs besides Go. Each is named when it is missing: a test that cannot run is a failure.
TEST_ALL_TOOLS = gcc strace unshare mount systemd-analyze

.PHONY: all build demo test test-all check fuzz bench install clean

all: build

build: ## bin/approvald, static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/approvald ./cmd/approvald

demo: build ## the whole story on one screen; ARGS=--auto plays it without a person
	./bin/approvald demo $(ARGS)

test: ## what a fresh clone can run: Go and nothing else
	$(GO) test ./...

test-all: ## everything: race detector, root, strace, small file systems
	@missing=; \
	for tool in $(TEST_ALL_TOOLS); do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	[ "$$(id -u)" = 0 ] || missing="$$missing root"; \
	[ -z "$$missing" ] || { echo "make test-all: missing:$$missing" >&2; exit 1; }
	$(GO) test ./internal/dispatch -run Simulation -sim.histories=10000
	@# A program under the race detector sleeps a second before it ends; the tests start thousands.
	GORACE=atexit_sleep_ms=0 $(GO) test -race -tags all -timeout 30m ./...

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
	$(GO) test -run '^$$' -bench . -skip TenThousandPending -benchtime 100x ./internal/e2e
	$(GO) test -run '^$$' -bench TenThousandPending -benchtime 1x ./internal/e2e
	$(GO) test -run TestFloodKeepsThePace -v -count 1 ./internal/dispatch -flood.requests=10000
	$(GO) test -run '^$$' -bench TapDuringFlood -benchtime 500x ./internal/dispatch
	$(GO) test -run '^$$' -bench . -benchtime 1s $$($(GO) list ./... | grep -v /internal/e2e)

install: build ## into DESTDIR/PREFIX, with what systemd needs
	install -D -m 0755 bin/approvald '$(DESTDIR)$(PREFIX)/bin/approvald'
	sed 's#/usr/local/bin/#$(PREFIX)/bin/#' deploy/systemd/approvald@.service >bin/approvald@.service
	install -D -m 0644 bin/approvald@.service '$(DESTDIR)$(PREFIX)/lib/systemd/system/approvald@.service'
	install -D -m 0644 deploy/systemd/approvald.sysusers '$(DESTDIR)$(PREFIX)/lib/sysusers.d/approvald.conf'
	install -D -m 0644 deploy/systemd/approvald.tmpfiles '$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/approvald.conf'

clean:
	rm -rf bin
