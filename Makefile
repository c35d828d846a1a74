# The project's commands; each is a script in packaging/ or one cargo line. `make help` lists them.
# DRY_RUN=1 shows what `setup` and `demo` would do without doing it.

.PHONY: help setup demo test build fuzz bench-forward

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what building needs (announced; DRY_RUN=1 only shows)
	@packaging/setup build

demo: setup ## forward a real capture with MAC addresses swapped, check every packet, print the result
	@packaging/demo

build: setup ## the release binary, target/release/inlane
	cargo build --release --bin inlane

test: ## install what tests need and run every check (under 30 minutes on two cores from cold)
	@packaging/setup test
	@packaging/test

fuzz: setup ## fuzz every parser for FUZZ_SECONDS each (600), from the kept corpus; MERGE=1 keeps what is new
	@packaging/fuzz $(or $(FUZZ_SECONDS),600)

bench-forward: setup ## inlane and dpdk-testpmd side by side on one core, alternating, medians (BENCH='null-64 --repeats 3')
	@cargo build --release --quiet --bin inlane
	@bench/forward/run $(BENCH)
