# Targets explain themselves: make help.
SHELL := /bin/bash
GO ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X main.version=$(VERSION)
DATA ?= ./data
ARGS ?=

.PHONY: help build run test unit integration race lint vet fuzz bench clean check tools redaction-score bench-streams
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

build: ## build bin/gateway
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/gateway ./cmd/gateway

run: build ## run the gateway on embedded defaults and print a curl line that works
	./bin/gateway dev --data $(DATA) $(ARGS)

test: vet unit race integration lint ## everything CI runs

unit: ## unit tests, fuzz seeds and benchmarks once; no network, no Node
	$(GO) test -timeout 10m -bench . -benchtime 1x ./...

# What needs no second look: documents, scripts, recorded answers and tables that are walked through; processes of their own; and what asks one
# question after the other over a stand-in network, for the detector makes the embedded database fifteen times slower; and what holds a
# program to milliseconds.
UNRACED := TestDocs|TestScript|TestSDK|TestKill|TestRunsKill|TestBudgetSurvivesAKill|TestRedaction|TestUsageTenMinutes|TestAccess|TestPolicyRow|TestInput|TestAudit[A-Z]|TestStory|TestToken.*Attack|TestLimitHeaders|Conform/network|FilesAreTheLedger|ReportsAreTheFold|RowIsNarrow|TestFaultShutdown|TestPathologicalPolicies|FuzzPolicy

race: ## the concurrent packages under the race detector
	$(GO) test -race -timeout 15m -skip '$(UNRACED)' ./gateway/... ./journal/... ./libsql/... ./billing/... ./tenancy/... ./keyring/... ./policy/... ./dispatch/... ./provider/... ./redaction/external ./metrics ./egress ./signing ./runs ./apps/... ./breaker ./retrieval/...
	$(GO) test -race -timeout 15m -skip '$(UNRACED)' ./cmd/...
	$(GO) test -race -timeout 10m -run 'Session|Stream|Policy|Restore|Mask|Log|Detector' ./redaction

integration: ## official SDKs and foreign clients against the real binary; installs what it needs
	$(GO) test -tags integration -timeout 15m -count 1 ./internal/integration/... ./internal/testkit/...

lint: vet ## static checks: golangci-lint where present, else staticcheck as a Go module
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	@if command -v golangci-lint >/dev/null; then golangci-lint run; else $(GO) tool staticcheck ./...; fi

vet: ## go vet and the import directions
	$(GO) vet ./... && $(GO) vet -tags integration ./internal/... && $(GO) test ./internal/layers

fuzz: ## every fuzz target by count, FUZZ=n executions each
	@set -e; for pkg in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	  echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(or $(FUZZ),100000)x $$pkg; done; done

bench: ## overhead against a bare reverse proxy, then the packages' own benchmarks
	$(GO) run ./bench
	$(GO) test -run '^$$' -bench . -benchmem -benchtime 300ms ./redaction ./wire/... ./sse ./policy/... ./billing ./journal ./metrics ./tenancy ./keyring ./cache ./libsql

bench-streams: ## a thousand streams at once for two minutes, each event timed against the upstream; wants an idle machine
	$(GO) run ./bench -load -clients 1000 -events 1000 -pace 20ms -slice 120s -hangups 3

redaction-score: ## score what redaction finds on labelled rows, ROWS=files
	$(GO) run ./cmd/gateway redaction score $(or $(ROWS),$(wildcard ../shared/data/redaction/*.jsonl ../shared/data/redaction/*.jsonl.gz))

clean: ## remove what was built; keeps data/
	rm -rf bin
