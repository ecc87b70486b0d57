# SPDX-License-Identifier: Apache-2.0
# Everything a new machine needs:
#   make demo   installs what is missing, builds, and runs `wallprof demo lock`
#   make test   installs what is missing, builds, and runs every test; those that record run as root, alone
#   make gate   all that a change must pass: docs/gate.md
# For developers:
#   make repeat TEST=NAME RUNS=20   a new live test, again and again: beside a load, alone, on one CPU
#   make verify    the slow checks, which do not gate; writes docs/verified.md
#   make lint      formatting and warnings of Rust and C; the tests of the gate itself
#   make doc       the documentation of all crates, in target/doc; a warning is an error
#   make deny      licences, sources and duplicates of the dependencies, by deny.toml
#   make freeze VERSION=V RECORDING=FILE   writes what a release promises into tests/frozen: docs/releasing.md
#   make third-party   writes THIRD-PARTY, the licences of the libraries in the binary, by about.toml
#   make packages  target/packages: tar.gz, .deb, OCI image, bill of materials and sums of the release
#   make packaging-tools   installs cargo-deb and cargo-cyclonedx in the versions that packages are made with
#   make packages-test   installs and removes them in a Debian 12 and a Debian 13, as root
#   make packages-twice   packs the release in two folders and two languages: different bytes are an error
#   make install-test   installs wallprof with cargo from this checkout, and runs its demo, as root
#   make release   target/release: wallprof, static, for any x86-64 Linux; man pages and shell completions
#   make bench         benchmarks of the code that runs per event or per byte, into target/bench.json: docs/benchmarks.md
#   make bench-check   fails if that code takes more instructions or allocations than in benches/baseline.json
#   make bench-baseline  stores a new benches/baseline.json
#   make fuzz-smoke    two minutes of fuzzing for the readers of foreign bytes, from the seeds in fuzz/
#   make hostile       the attacks of docs/reliability.md by name, with floods of a million rows
#   make neighbours    attacks of another user on `record -a` and `watch -a`, a minute each: half an hour as root
#   make soak          the memory of `watch` under a mixed load, half an hour as root
#   make causality makes one cause of delay after the other larger, and checks that its figure and no other follows
#   make truth     compares wallprof and its peers with the logs of the scenarios, and writes docs/truth.md
#   make peers     measures wallprof beside other profilers, and writes docs/peers: half an hour on an idle machine
#   make reproducible  builds the release in two folders: different bytes are an error
#   make idle      servers without clients and a shell under `watch -a`: ten minutes as root on an idle machine
#   make idle-trixie    the same with the servers of Debian 13
#   make causes    real software with a planted cause: whether the first finding names it, as root
#   make causes-trixie   the same with the runtimes and servers of Debian 13
#   make fleet     a fleet's tables, generated from recordings: the questions of docs/fleet.md in DuckDB and ClickHouse
#   make trials    `runs --compare` on runs with a planted slowdown and on equal ones: ten minutes as root, idle machine
#   make complete  the share of complete stacks in real software: half a minute of servers, compiled and JIT programs
#   make systemd   runs the service of contrib/ under the real systemd, in a container
#   make kubernetes   validates contrib/kubernetes, and runs `watch` with the rights of its DaemonSet, as root
#   make kubernetes-tools   builds helm and kubeconform for that, with Go
#   make kernels   records the lock scenario on Debian's kernels in an emulator, and writes docs/kernels.md
#   make kernel KERNEL=6.1   the same on one of them

SHELL := /bin/bash
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# Debian packages, each with its reason.
BUILD_PACKAGES := clang-19 gcc libc6-dev libelf-dev zlib1g-dev pkg-config
# tmux: a terminal for `wallprof top`.
TEST_PACKAGES := g++ gdb binutils util-linux stress-ng linux-perf redis-server redis-tools nodejs prometheus debuginfod openssl xz-utils postgresql tmux musl-tools openjdk-17-jdk-headless
LINT_PACKAGES := clang-format-19
# What runs the tests.
GATE_PACKAGES := python3
BENCH_PACKAGES := jq valgrind
PROBE_BENCH_PACKAGES := bpftool linux-perf
FUZZ_PACKAGES := g++
TRUTH_PACKAGES := jq linux-perf bpftrace
PEERS_PACKAGES := gcc libc6-dev linux-perf bpftrace sysprof dbus polkitd stress-ng postgresql redis-server redis-tools time
KERNEL_PACKAGES := qemu-system-x86 busybox-static jq sqlite3
READER_PACKAGES := chromium jq
FLEET_PACKAGES := gcc python3 redis-server redis-tools postgresql
SYSTEMD_PACKAGES := systemd curl
KUBERNETES_PACKAGES := runc curl jq
NEIGHBOUR_PACKAGES := python3 util-linux jq curl redis-server redis-tools
IDLE_PACKAGES := jq curl util-linux
CAUSES_QUICK_PACKAGES := jq python3 sqlite3 gcc g++
TRIXIE_PACKAGES := debootstrap util-linux jq
CAUSES_PACKAGES := jq python3 sqlite3 gcc g++ nodejs openjdk-17-jdk-headless util-linux e2fsprogs ruby postgresql redis-server redis-tools
PACKAGING_PACKAGES := jq python3 xz-utils dpkg-dev
PACKAGES_TWICE_PACKAGES := locales
PACKAGES_TEST_PACKAGES := python3 debootstrap lintian skopeo podman runc systemd curl
SOAK_PACKAGES := gcc libc6-dev redis-server redis-tools stress-ng

# Tools that cargo installs, for packages and THIRD-PARTY. Other versions may write other bytes.
CARGO_DEB := 3.8.0
CARGO_CYCLONEDX := 0.5.9
CARGO_ABOUT := 0.9.3
HELM := v3.18.4
KUBECONFORM := v0.8.0

why_clang-19 := compiles the BPF programs
why_gcc := links, and compiles SQLite and the scenarios
why_libc6-dev := the headers for that
why_libelf-dev := libbpf reads BPF objects with it
why_zlib1g-dev := libelf needs it
why_pkg-config := finds both libraries
why_g++ := tests of C++ names; compiles the fuzzer
why_gdb := stops programs and reads their stacks, to compare
why_binutils := tests strip and split programs
why_util-linux := tests in other mount namespaces and as another user
why_stress-ng := tests on a loaded machine
why_chromium := opens flame graphs and speedscope files
why_linux-perf := perf bench makes switches to count and to time
why_redis-server := tests on a program that has idle workers
why_redis-tools := keeps it busy
why_prometheus := scrapes the watcher, and checks the alert rules
why_debuginfod := serves debug files of programs that tests split, and reads the cache of downloads
why_openssl := serves them over TLS
why_xz-utils := packs MiniDebugInfo
why_nodejs := tests on code made at run time
why_clang-format-19 := checks the format of C
why_qemu-system-x86 := boots other kernels
why_busybox-static := the other programs on those kernels
why_openjdk-17-jdk-headless := stacks, locks and collections of Java
why_e2fsprogs := a file system to freeze
why_debootstrap := makes folders with Debian 12 and 13
why_dpkg-dev := makes the Debian package
why_lintian := checks it
why_locales := a language that sorts unlike C
why_skopeo := reads the image for containers
why_podman := runs it
why_runc := runs it where crun does not
why_musl-tools := builds a scenario with another C library
why_ruby := waits for its GVL
why_python3 := runs the tests; the programs of a hostile neighbour; waits for the GIL
why_systemd := runs the service
why_curl := reads the metrics of the service
why_runc := makes the container of a pod
why_jq := checks what wallprof recorded there, and puts benchmarks together
why_sqlite3 := queries a recording made there; a database whose lock is waited for
why_bpftool := prints the run time of each BPF program
why_bpftrace := one of the profilers that are compared
why_sysprof := another one
why_dbus := gives events to sysprof
why_polkitd := permits sysprof to have them
why_postgresql := tests on a server that forks; a workload of the comparison
why_time := measures time and memory of drawing a picture
why_valgrind := counts instructions

# `$(call install,PACKAGES)` installs the missing packages at once, and prints them with their reasons. It
# waits for another apt for ten minutes. The timeout of the lock does not apply to the lists that `update` writes.
missing = $(strip $(foreach package,$(1),$(if $(filter ii,$(shell dpkg-query -W -f='$${db:Status-Abbrev}' $(package) 2>/dev/null)),,$(package))))
install = $(if $(call missing,$(1)),$(call apt,$(call missing,$(1))))
APT := env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600
define apt
	@echo "Installing Debian packages:"
	@$(foreach package,$(1),echo "  $(package): $(why_$(package))";)
	@command -v apt-get > /dev/null || { echo "There is no apt-get here: install them by hand, then run make again." >&2; exit 1; }
	@until message=$$($(SUDO) $(APT) update -qq 2>&1); do \
		[[ $$message == *"Could not get lock"* && $$SECONDS -lt 600 ]] || { echo "$$message" >&2; exit 1; }; \
		sleep 2; \
	done
	$(SUDO) $(APT) install -y -qq --no-install-recommends $(1) < /dev/null

endef

TARGET = $(shell rustc -vV | sed -n 's/^host: //p')
CARGO_FOLDER = $(or $(CARGO_HOME),$(HOME)/.cargo)
RELEASE_FLAGS = -C target-feature=+crt-static --remap-path-prefix=$(CURDIR)=/wallprof --remap-path-prefix=$(CARGO_FOLDER)=/cargo
# Relative relocations as a bit map (DT_RELR): 0.35 MB less. Equal functions of Rust are one: 0.24 MB less, with the
# table that crates/probe/src/lib.rs asks for.
DIST_FLAGS = $(RELEASE_FLAGS) -C link-arg=-Wl,-z,pack-relative-relocs,--icf=safe,-O2

.PHONY: confirm rerecord rerecord-causes goldens kubernetes kubernetes-packages kubernetes-tools packages packaging-tools packages-test packages-twice install-test demo test gate repeat verify kernel deny third-party freeze doc bench bench-check bench-baseline causality fuzz-smoke hostile neighbours soak truth peers reproducible idle idle-trixie causes causes-quick causes-trixie complete readers fleet trials lint release kernels systemd scenarios rust
.PHONY: packaging-packages packages-test-packages packages-twice-packages build-packages test-packages lint-packages kernel-packages systemd-packages reader-packages fleet-packages bench-packages probe-bench-packages fuzz-packages truth-packages peers-packages neighbour-packages soak-packages idle-packages causes-packages causes-quick-packages trixie-packages

# The checks of readers, systemd and one kernel take the binary that WALLPROF names, or a release.
BUILT := $(if $(WALLPROF),,release)

# The profile of the tests: optimised a little, without the minutes of link-time optimisation of `release`. Of
# the whole workspace, so that dependencies have the features that they have in tests.
demo: build-packages rust
	cargo build --profile demo --workspace --bin wallprof
	$(SUDO) target/demo/wallprof demo lock -o target/demo.db

test: test-packages rust
	tests/gate/gate.py tests

gate: lint-packages test-packages kernel-packages reader-packages systemd-packages rust
	tests/gate/gate.py

repeat: test-packages rust
	tests/gate/gate.py repeat '$(TEST)' $(or $(RUNS),20)

# Tests of stored runs (tests/stored): live; live, and stored anew; what the readers print of them, stored anew.
confirm rerecord: test-packages rust
	tests/gate/gate.py $@ $(TEST)

# Real causes with the software of Debian 13, stored anew where they were right.
rerecord-causes: release trixie-packages
	-$(SUDO) tests/debian/root.sh tests/causes/run.sh -k $(CURDIR)/target/causes/kept $(CASES)
	WALLPROF_CAUSES=$(CURDIR)/target/causes/kept cargo test --profile demo --workspace --test findings -- --ignored --exact causes::store_causes

goldens: test-packages rust
	tests/gate/gate.py goldens

verify: kernel-packages causes-quick-packages trixie-packages fuzz-packages test-packages bench-packages rust
	tests/gate/gate.py verify $(CHECKS)

doc: export RUSTDOCFLAGS = -Dwarnings
doc: build-packages rust
	cargo doc --no-deps --workspace

# In the profile of the tests, whose build scripts are run once for both.
lint: lint-packages rust
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --profile demo -- -D warnings
	clang-format-19 --dry-run -Werror $$(git ls-files 'bpf/*.[ch]' 'scenarios/*.[ch]' 'include/*.h' 'include/examples/*')
	$(CC) -std=c11 -pedantic -Wall -Wextra -Werror -fsyntax-only -I include include/examples/orders.c
	$(CXX) -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -I include include/examples/orders.cc
	cd tests/gate && python3 -m unittest -q test_gate

# Checks for known vulnerabilities, too, if their list can be fetched.
deny: rust
	@cargo deny --version > /dev/null 2>&1 || { echo "cargo-deny is missing: cargo install --locked cargo-deny, then run make again." >&2; exit 1; }
	cargo deny --all-features check bans licenses sources
	@if cargo deny fetch db > /dev/null 2>&1; then cargo deny --all-features check advisories; \
	else echo "The list of known vulnerabilities cannot be fetched here: not checked." >&2; fi

# Names and versions in it are compared with Cargo.lock by a test.
# docs/releasing.md.
freeze:
	@[ -n "$(VERSION)" ] && [ -f "$(RECORDING)" ] || { echo "usage: make freeze VERSION=0.2.0 RECORDING=FILE, a recording of the scenario lock" >&2; exit 2; }
	WALLPROF_FREEZE=$(VERSION) WALLPROF_FREEZE_RECORDING=$(abspath $(RECORDING)) \
		cargo test --profile demo --workspace --test cli frozen -- --test-threads=1

third-party: rust
	@cargo about --version > /dev/null 2>&1 || { echo "cargo-about is missing: cargo install --locked cargo-about@$(CARGO_ABOUT) --features cli, then run make again." >&2; exit 1; }
	cargo about generate --locked --manifest-path crates/wallprof/Cargo.toml --config about.toml about.hbs --output-file THIRD-PARTY
	sed -i "/^  wallprof-/d" THIRD-PARTY

# With an explicit target, the flags do not apply to build scripts and macros, which cannot be static. The
# profile is in Cargo.toml. The binary with symbols stays in target/TARGET/dist. It contains no path of this
# machine.
release: export RUSTFLAGS = $(DIST_FLAGS)
# Nothing unwinds through C code: its panics end at the border. Without tables of it the binary is smaller.
release: export CFLAGS_$(subst -,_,$(TARGET)) = -fno-asynchronous-unwind-tables -fno-unwind-tables
release: build-packages rust
	cargo build --profile dist --package wallprof --target $(TARGET)
	mkdir -p target/release
	rm -rf target/release/wallprof target/release/man target/release/completions
	strip -o target/release/wallprof target/$(TARGET)/dist/wallprof
	@! readelf -lW target/release/wallprof | grep INTERP || { echo "target/release/wallprof is not static" >&2; exit 1; }
	target/release/wallprof __documents target/release

packaging-tools: rust
	cargo install --locked cargo-deb@$(CARGO_DEB) cargo-cyclonedx@$(CARGO_CYCLONEDX)

packages: release packaging-packages
	packaging/build.sh

# In roots of Debian 12 and 13 that are made for it, and under systemd.
packages-test: packages packages-test-packages
	$(SUDO) env WALLPROF_REQUIRE_SYSTEMD="$$WALLPROF_REQUIRE_SYSTEMD" tests/packages/run.sh

packages-twice: release packaging-packages packages-twice-packages
	tests/packages/twice.sh

# The program that cargo installs from a checkout, with the C libraries of this machine.
install-test: build-packages rust
	tests/install/run.sh

# Statically linked, as the release is. The profile is cargo's own: counts do not depend on the size of the
# release.
bench bench-check bench-baseline: export RUSTFLAGS = $(RELEASE_FLAGS)
bench bench-check bench-baseline: export CARGO_BUILD_TARGET = $(TARGET)

# Times are meaningful on an idle machine only, instruction counts on each.
bench: release bench-packages probe-bench-packages
	benches/bmf.sh times instructions > target/bench.cargo.json
	$(SUDO) benches/bmf.sh probes > target/bench.probes.json
	jq -s '.[0] * .[1]' target/bench.cargo.json target/bench.probes.json > target/bench.json
	@echo "target/bench.json: $$(jq length target/bench.json) benchmarks."

bench-check: build-packages bench-packages rust
	benches/check.sh check

bench-baseline: build-packages bench-packages rust
	benches/check.sh baseline

truth: release scenarios truth-packages
	$(SUDO) benches/truth/run.sh -o docs/truth.md

# Five minutes, with nothing else running.
causality: release scenarios
	$(SUDO) benches/causality/run.py -o docs/truth.md

# The OpenTelemetry profiler needs Go, flame graphs of perf need inferno; the row of a missing tool says so.
peers: release peers-packages
	$(SUDO) env PATH="$$PATH" benches/peers/run.sh -r 3 -s 3 -b 3 -o docs/peers

# Ten minutes or more: two builds from scratch.
reproducible: build-packages rust
	tests/reproducible/run.sh

fuzz-smoke: build-packages fuzz-packages rust
	fuzz/smoke.sh

# `make test` runs the same tests in CI, with floods of 120,000 rows.
hostile: test-packages rust
	tests/neighbours/attacks.sh

# Not in CI: it takes half an hour, and other programs on the machine would change its figures.
neighbours: release neighbour-packages
	$(SUDO) tests/neighbours/run.sh

soak: release soak-packages
	$(SUDO) benches/soak.sh

# Not in CI: other programs on the machine are late, too. A missing server is left out with a message: the
# packages of some start a server of their own.
idle: release idle-packages
	$(SUDO) env PATH="$$PATH" tests/idle/run.sh

idle-trixie: release trixie-packages
	$(SUDO) tests/debian/root.sh tests/idle/run.sh -w target/debian/wallprof

# Not in CI: ten minutes, and most of its programs are not installed there. CASES names some of them, RUNS is the
# number of runs of each. A case whose packages are missing is skipped with a message.
# The quickest cases of it, in CI: each was right in three runs beside a load of 12 on two CPUs.
CAUSES_QUICK := python-gil python-lock cxx-semaphore sqlite-busy cgroup-cpu-quota
causes-quick: release causes-quick-packages
	$(SUDO) env PATH="$$PATH" SECONDS_OF_RUN=7 tests/causes/run.sh $(CAUSES_QUICK)

# The same with the software of Debian 13 (tests/debian/root.sh), wallprof outside.
causes-trixie: release trixie-packages
	$(SUDO) tests/debian/root.sh tests/causes/run.sh $(if $(RUNS),-n $(RUNS)) $(CASES)

causes: release causes-packages
	$(SUDO) env PATH="$$PATH" tests/causes/run.sh $(if $(RUNS),-n $(RUNS)) $(CASES)

# Opens pictures and exports in their usual programs; a missing program is skipped with a message.
readers: $(BUILT) scenarios reader-packages
	tests/readers/run.sh

# SIZE=full: 100 host-hours, whose answers and times are in docs/fleet.md.
fleet: release scenarios fleet-packages
	$(SUDO) env PATH="$$PATH" tests/fleet/run.sh $(SIZE)

# Not in CI: noise of other programs hides what is planted. TRIALS=3 takes three minutes.
trials: release scenarios bench-packages
	$(SUDO) env PATH="$$PATH" tests/runs/run.sh $(if $(TRIALS),-n $(TRIALS))

# Not in CI: two minutes, and most of its programs are not installed there. A missing program is skipped with
# a message.
complete: release
	$(SUDO) tests/complete/run.sh

kernels: release kernel-packages
	tests/kernels/run.sh

kernel: $(BUILT) kernel-packages
	tests/kernels/run.sh $(or $(KERNEL),6.1)

# Without root, or in a container that may not create another one, it prints so and tests nothing.
systemd: $(BUILT) systemd-packages
	tests/systemd/run.sh

# A missing program is skipped with a message, and required by `make verify`. helm needs Go 1.24 or newer.
kubernetes: $(BUILT) scenarios kubernetes-packages
	$(SUDO) env PATH="$$PATH:$$(go env GOPATH 2> /dev/null)/bin" WALLPROF_REQUIRE_KUBERNETES="$$WALLPROF_REQUIRE_KUBERNETES" \
		tests/kubernetes/run.sh

kubernetes-tools:
	go install helm.sh/helm/v3/cmd/helm@$(HELM)
	go install github.com/yannh/kubeconform/cmd/kubeconform@$(KUBECONFORM)

scenarios: build-packages
	$(MAKE) --no-print-directory -C scenarios

rust:
	@command -v cargo > /dev/null || { echo "Rust is missing: install it as https://rustup.rs says, then run make again." >&2; exit 1; }

build-packages:
	$(call install,$(BUILD_PACKAGES))

test-packages:
	$(call install,$(BUILD_PACKAGES) $(TEST_PACKAGES) $(GATE_PACKAGES))
	tests/debian/libc.sh

kernel-packages:
	$(call install,$(KERNEL_PACKAGES))

bench-packages:
	$(call install,$(BENCH_PACKAGES))

probe-bench-packages:
	$(call install,$(PROBE_BENCH_PACKAGES))

neighbour-packages:
	$(call install,$(NEIGHBOUR_PACKAGES))

soak-packages:
	$(call install,$(SOAK_PACKAGES))

idle-packages:
	$(call install,$(IDLE_PACKAGES))

causes-quick-packages:
	$(call install,$(CAUSES_QUICK_PACKAGES))

trixie-packages:
	$(call install,$(TRIXIE_PACKAGES))

causes-packages:
	$(call install,$(CAUSES_PACKAGES))

packaging-packages:
	$(call install,$(PACKAGING_PACKAGES))

packages-test-packages:
	$(call install,$(PACKAGES_TEST_PACKAGES))

packages-twice-packages:
	$(call install,$(PACKAGES_TWICE_PACKAGES))

truth-packages:
	$(call install,$(TRUTH_PACKAGES))

peers-packages:
	$(call install,$(PEERS_PACKAGES))

fuzz-packages:
	$(call install,$(FUZZ_PACKAGES))

kubernetes-packages:
	$(call install,$(KUBERNETES_PACKAGES))

systemd-packages:
	$(call install,$(SYSTEMD_PACKAGES))

reader-packages:
	$(call install,$(READER_PACKAGES))

fleet-packages:
	$(call install,$(FLEET_PACKAGES))

lint-packages:
	$(call install,$(BUILD_PACKAGES) $(LINT_PACKAGES) $(GATE_PACKAGES))
