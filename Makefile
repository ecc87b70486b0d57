# Everything a new machine needs:
#   make demo   installs what is missing, builds, records the lock scenario and prints the report
#   make test   installs what is missing, builds, and runs every test; those that record run as root
# For developers:
#   make lint      formatting and warnings of Rust and C
#   make release   target/release/wallprof

SHELL := /bin/bash
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# Debian packages, each with the reason it is asked for.
BUILD_PACKAGES := clang-19 gcc libc6-dev libelf-dev zlib1g-dev pkg-config
TEST_PACKAGES := g++ binutils util-linux stress-ng linux-perf
LINT_PACKAGES := clang-format-19

why_clang-19 := compiles the BPF programs
why_gcc := links, and compiles SQLite and the scenarios
why_libc6-dev := the headers for that
why_libelf-dev := libbpf reads BPF objects with it
why_zlib1g-dev := libelf needs it
why_pkg-config := finds both libraries
why_g++ := tests of C++ names
why_binutils := tests strip and split programs
why_util-linux := tests in other mount namespaces and as another user
why_stress-ng := tests on a loaded machine
why_linux-perf := perf bench makes switches to count
why_clang-format-19 := checks the format of C

# Only what is not installed, asked for once. `$(call install,PACKAGES)` says what it installs and why.
missing = $(strip $(foreach package,$(1),$(if $(filter ii,$(shell dpkg-query -W -f='$${db:Status-Abbrev}' $(package) 2>/dev/null)),,$(package))))
install = $(if $(call missing,$(1)),$(call apt,$(call missing,$(1))))
define apt
	@echo "Installing Debian packages:"
	@$(foreach package,$(1),echo "  $(package): $(why_$(package))";)
	@command -v apt-get > /dev/null || { echo "There is no apt-get here: install them by hand, then make again." >&2; exit 1; }
	$(SUDO) apt-get update -qq
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) < /dev/null

endef

DEMO := target/demo.db
DEMO_SECONDS := 10

.PHONY: demo test lint release scenarios rust build-packages test-packages lint-packages

demo: release scenarios
	@echo
	@echo "Recording the lock scenario for $(DEMO_SECONDS) s: an engine that is fast until a rare message makes it"
	@echo "wait for a mutex (scenarios/lock.c). The same by hand, on any process: sudo wallprof record -p PID"
	$(SUDO) target/release/wallprof record -o $(DEMO) -- target/scenarios/lock -d $(DEMO_SECONDS) > target/demo-truth.jsonl
	@echo
	@target/release/wallprof report $(DEMO)

# Tests that record need root; without it they are built here and run with sudo.
ifneq ($(SUDO),)
test: export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER = sudo --preserve-env=WALLPROF_REQUIRE_BPF
endif
test: test-packages rust
	cargo test --workspace

lint: lint-packages rust
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	clang-format-19 --dry-run -Werror $$(git ls-files 'bpf/*.[ch]' 'scenarios/*.[ch]')

release: build-packages rust
	cargo build --release --package wallprof

scenarios: build-packages
	$(MAKE) --no-print-directory -C scenarios

rust:
	@command -v cargo > /dev/null || { echo "Rust is missing: install it as https://rustup.rs says, then make again." >&2; exit 1; }

build-packages:
	$(call install,$(BUILD_PACKAGES))

test-packages:
	$(call install,$(BUILD_PACKAGES) $(TEST_PACKAGES))

lint-packages:
	$(call install,$(BUILD_PACKAGES) $(LINT_PACKAGES))
