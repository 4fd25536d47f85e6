# Chores of the repository; `make` alone explains them. Go is all that they need beforehand: what else a chore
# uses it gets itself and says so.

GO        ?= go
LINTER    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
SERVICES  := $(GO) run ./internal/cmd/services
NEEDED    := kafka postgres chromium promtool
TESTFLAGS ?=
PKG       ?= ./...
FUZZTIME  ?= 10s
BENCH     ?= .
BENCHPKG  ?= ./bench
COUNT     ?= 6
EVENTS    ?= 100000
AGGREGATES ?= 1000
KILLS     ?= 20
RUNS      ?= 3
MEMBERSHIP ?= leases
PAIRTIME  ?= 10m
PAIREVENTS ?= 200000
PAIRAGGREGATES ?= 2000

# The race detector needs a C compiler. Outside CI tests run without it rather than not at all.
RACE = $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race)

# A clone that belongs to somebody else must build too: no version is taken from git.
export GOFLAGS := -buildvcs=false $(GOFLAGS)

.DEFAULT_GOAL := help
.PHONY: help build test test-short race-check lint fmt fuzz bench prove prove-full redrive-full prove-pair cover services services-stop services-status clean

help: ## say what there is to make
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  Settings: PKG=$(PKG) TESTFLAGS= FUZZTIME=$(FUZZTIME) BENCH=$(BENCH) BENCHPKG=$(BENCHPKG) COUNT=$(COUNT) EVENTS=$(EVENTS) AGGREGATES=$(AGGREGATES) KILLS=$(KILLS) RUNS=$(RUNS)"
	@echo "  SWARMLOG_KAFKA, SWARMLOG_POSTGRES, CHROME and PROMTOOL name services to use; those not named are got and started."

build: ## build bin/swarmlog, without C
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/swarmlog ./cmd/swarmlog

test: race-check ## run all tests, race-checked, beside real Kafka and PostgreSQL (started and stopped here)
	@$(SERVICES) run $(NEEDED) -- $(GO) run ./internal/cmd/testreport $(RACE) -timeout 15m $(TESTFLAGS) $(PKG)

test-short: ## run the tests that need nothing but Go, without the long ones
	@$(GO) test -short $(TESTFLAGS) $(PKG)

race-check:
	@if [ -z "$(RACE)" ]; then \
	  echo "make: no C compiler, so no race detector: install gcc or clang" >&2; \
	  if [ "$(CI)" = true ]; then exit 1; fi; \
	fi

lint: ## check format, vet and lint (golangci-lint, at a pinned version)
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not formatted; run make fmt:" >&2; echo "$$unformatted" >&2; exit 1; fi
	$(GO) run $(LINTER) run --allow-parallel-runners ./...
	@if [ -f bench/peers/go.mod ]; then cd bench/peers && $(GO) vet ./...; fi

fmt: ## format all Go code
	gofmt -w .

fuzz: ## run every fuzz target for FUZZTIME each
	@grep -rlE '^func Fuzz' --include='*_test.go' . | sort | while read -r file; do \
	  for name in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file"); do \
	    echo "== $$name ($$file), $(FUZZTIME)"; \
	    $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" </dev/null || exit 1; \
	  done; \
	done

bench: ## run the benchmarks of BENCHPKG (./...: of all packages) COUNT times, in the form that benchstat reads
	@$(GO) test -run '^$$' -bench '$(BENCH)' -count $(COUNT) -timeout 60m $(TESTFLAGS) $(BENCHPKG)
	@if [ -f bench/peers/go.mod ]; then cd bench/peers && $(GO) test -run '^$$' -bench '$(BENCH)' -count $(COUNT) -timeout 60m $(TESTFLAGS) ./...; fi

prove: ## check the promises on the embedded broker and ledger: EVENTS over AGGREGATES
	@$(GO) run ./cmd/swarmlog prove --events $(EVENTS) --aggregates $(AGGREGATES)

prove-full: ## the same in full: RUNS times, with KILLS kills each, a verdict a line
	@for run in $$(seq $(RUNS)); do \
	  $(GO) run ./cmd/swarmlog prove --json --events $(EVENTS) --aggregates $(AGGREGATES) --kills $(KILLS) || exit 1; \
	done

e2e-full: ## read 2,000 documents and 20 PDFs, also under 20 kills: the full form of test/e2e, with its figures
	@$(SERVICES) run chromium -- env SWARMLOG_E2E=full $(GO) test -count=1 -timeout 60m -v $(TESTFLAGS) ./test/e2e

redrive-full: ## park an aggregate, let 10,000 of its events wait beside 1,000,000 of others, and let it go on, on real Kafka and PostgreSQL
	@$(SERVICES) run kafka postgres -- env SWARMLOG_REDRIVE=full $(GO) test -count=1 -timeout 90m -v $(TESTFLAGS) ./test/redrive

prove-pair: ## the same on real Kafka and PostgreSQL (given or started here): MEMBERSHIP, RUNS times for PAIRTIME, a verdict a line
	@$(SERVICES) run kafka postgres -- sh -c 'for n in $$(seq $(RUNS)); do \
	  SWARMLOG_LEDGER="$$SWARMLOG_POSTGRES" $(GO) run ./cmd/swarmlog prove --json --brokers "$$SWARMLOG_KAFKA" --membership $(MEMBERSHIP) \
	    --events $(PAIREVENTS) --aggregates $(PAIRAGGREGATES) --duration $(PAIRTIME) || exit 1; done'

cover: ## run all tests and tell how much of the code they reach
	@mkdir -p .cache
	@$(SERVICES) run $(NEEDED) -- $(GO) run ./internal/cmd/testreport -coverpkg=./... -coverprofile=.cache/cover.out -timeout 15m $(PKG)
	@$(GO) tool cover -func=.cache/cover.out | tail -1

services: ## start three Kafka brokers and a PostgreSQL, and print their addresses: eval "$(make -s services)"
	@$(SERVICES) start kafka postgres

services-stop: ## end just these again
	@$(SERVICES) stop

services-status: ## tell which of them run
	@$(SERVICES) status

clean: ## remove what was built here; data folders stay
	rm -rf bin .cache
