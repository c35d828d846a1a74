# The project's commands. Each runs a script of packaging/ or one cargo command; `make help` lists them.
# DRY_RUN=1 makes `setup` and `demo` print what they would do and do nothing.

PREFIX ?= /usr/local

.PHONY: help setup demo test test-all test-programs test-deb build install deb wheel docs fuzz bench-forward bench-compare

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what building needs (announces each step; DRY_RUN=1 only prints)
	@packaging/setup build

demo: setup ## build, forward a real capture with MAC addresses swapped, check every packet, measure a rate
	@packaging/demo

build: setup ## build the release binary, target/release/inlane, and the libraries for C
	@PATH="$$PATH:$${CARGO_HOME:-$$HOME/.cargo}/bin" cargo build --release --bin inlane
	@PATH="$$PATH:$${CARGO_HOME:-$$HOME/.cargo}/bin" cargo build --release -p inlane-shmem -p inlane-preload -p inlane-batch
	@packaging/openshmem/weaken "$${CARGO_TARGET_DIR:-target}/release/libinlane_shmem.a"
	@ln -sf libinlane_shmem.so "$${CARGO_TARGET_DIR:-target}/release/libinlane_shmem.so.0"
	@cp -P packaging/openshmem/osh* "$${CARGO_TARGET_DIR:-target}/release"

install: build ## install inlane, its man pages, completions, units and the libraries for C under PREFIX (/usr/local)
	@DESTDIR="$(DESTDIR)" packaging/install "$(PREFIX)"

deb: build ## make the Debian packages inlane and inlane-dev in .out/deb
	@packaging/deb

test-deb: deb ## install the packages in a fresh Debian 12, use them there, remove them (needs root, debootstrap and Debian's mirror)
	@packaging/test-deb

wheel: setup ## build the wheel of the Python package, with the command inside, in .out/wheels
	@PATH="$$PATH:$${CARGO_HOME:-$$HOME/.cargo}/bin" packaging/wheel

test: ## install what tests need and run every check (about 15 minutes on two cores)
	@packaging/setup test
	@packaging/test

test-all: ## run every check at its full length, also random input and advisories about dependencies (about 40 minutes)
	@packaging/setup test-all
	@packaging/test --all

test-programs: ## run unmodified servers and clients on the offload engine, check their results (PROGRAMS='nginx socat')
	@packaging/setup programs
	@PATH="$$PATH:$${CARGO_HOME:-$$HOME/.cargo}/bin" packaging/test-programs $(PROGRAMS)

docs: setup ## build the documentation site in .out/site with mdBook, and check its links
	@packaging/docs build

fuzz: setup ## fuzz every target for FUZZ_SECONDS each (600); MERGE=1 keeps inputs that reach new code
	@packaging/fuzz $(or $(FUZZ_SECONDS),600)

bench-compare: setup ## measure this tree and an earlier build in turns, print the changes (OLD=main BENCH='null --turns 9')
	@bench/compare/run --old "$(or $(OLD),main)" $(BENCH)

bench-forward: setup ## run inlane and dpdk-testpmd in turns on one core, print medians (BENCH='null-64 --repeats 3')
	@cargo build --release --quiet --bin inlane
	@bench/forward/run $(BENCH)
