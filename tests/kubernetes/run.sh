#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks contrib/kubernetes, and runs `wallprof watch` in a container with exactly the rights of daemonset.yaml.
#
#   tests/kubernetes/run.sh
#
# The container is runc's: that of bundle.py, with the fields of the DaemonSet as a kubelet translates them. Then it
# is run without each capability, and the loss is named. Uses target/release/wallprof (WALLPROF names another) and
# target/scenarios. Needs root and the Debian packages runc, curl and jq. A missing program is skipped with a
# message; with WALLPROF_REQUIRE_KUBERNETES=1 it is a failure. `make kubernetes-tools` builds helm and kubeconform.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/tests/kubernetes
readonly STORE=$PWD/target/kubernetes
readonly WALLPROF=${WALLPROF:-$PWD/target/release/wallprof}
readonly SCENARIOS=${SCENARIOS:-$PWD/target/scenarios}
readonly MANIFEST=contrib/kubernetes/daemonset.yaml
readonly CHART=contrib/kubernetes/chart
readonly VERSIONS=(1.30.0 1.34.0 1.37.0)
readonly PROFILES=github.com/moby/profiles/seccomp@v0.3.0
readonly NAME=wallprof-kubernetes-test
readonly ID=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef

say() { echo "kubernetes: $*" >&2; }
fail() { say "$*"; exit 1; }
passed() { say "ok: $*"; }
# What this machine's kernel cannot do, whatever is installed.
leave_out() { say "SKIPPED: $*"; }
skip() {
    if [ "${WALLPROF_REQUIRE_KUBERNETES:-}" = 1 ]; then
        fail "required, and missing: $*"
    fi
    say "SKIPPED: $*"
}

python() { PYTHONPATH="$STORE/python" python3 "$@"; }
run_c() { runc --root "$STORE/runc" "$@"; }

python_packages() {
    if ! cmp -s "$HERE/requirements.txt" "$STORE/python/.from"; then
        python3 -m pip install --quiet --no-deps --target "$STORE/python" -r "$HERE/requirements.txt" 2> /dev/null || return
        cp "$HERE/requirements.txt" "$STORE/python/.from"
    fi
}

check_chart() {
    command -v helm > /dev/null || { skip "the chart: there is no helm"; return; }
    helm lint --quiet --strict $CHART || fail "helm lint"
    helm template wallprof $CHART -n wallprof > "$STORE/rendered.yaml"
    python "$HERE/compare.py" $MANIFEST "$STORE/rendered.yaml" || fail "the chart is not the manifest"
    helm template other $CHART -n else --set appArmorProfile=null --set image.tag=9 --set priorityClassName=high \
        --set 'imagePullSecrets[0].name=key' > "$STORE/other.yaml"
    ! grep -q appArmorProfile "$STORE/other.yaml" && grep -q 'image: "wallprof:9"' "$STORE/other.yaml" || fail "values are ignored"
    passed "the chart renders the manifest"
}

# The schemas of the package kubernetes-validate, which are those of the API.
check_schemas() {
    command -v kubeconform > /dev/null || { skip "the schemas: there is no kubeconform"; return; }
    local version schemas="$STORE/python/kubernetes_validate/kubernetes-json-schema" rendered=("$STORE"/*.yaml)
    [ -e "${rendered[0]}" ] || rendered=()
    for version in "${VERSIONS[@]}"; do
        python3 "$HERE/schemas.py" "$schemas/v$version-local-strict" "$STORE/schemas-$version"
        kubeconform -strict -schema-location "$STORE/schemas-$version/{{.ResourceKind}}{{.KindSuffix}}.json" \
            $MANIFEST "${rendered[@]}" || fail "kubeconform: Kubernetes $version"
    done
    passed "the schemas of Kubernetes ${VERSIONS[*]}"
}

tear_down() {
    run_c delete --force $NAME > /dev/null 2>&1 || true
    [ -z "${workload:-}" ] || kill $workload 2> /dev/null || true
    # shellcheck disable=SC2086
    [ -z "$workload" ] || wait $workload 2> /dev/null || true
    rm -rf "${other:-/nonexistent}" "${gone:-/nonexistent}"
    [ -z "${group:-}" ] || rmdir "$group" "${group%/*}" 2> /dev/null || true
}

# The default seccomp profile of docker, whose rules containerd and CRI-O share.
seccomp_profile() {
    local folder
    folder=$(go mod download -json $PROFILES 2> /dev/null | jq -r .Dir) && [ -e "$folder/default.json" ] && echo "$folder/default.json"
}

# Starts the container without WITHOUT (`-SYSLOG`); true when it is armed.
start() { # [WITHOUT]
    local until=$((SECONDS + 200))
    rm -rf "$STORE/bundle"
    python "$HERE/bundle.py" $MANIFEST "$STORE/bundle" "$WALLPROF" "$profile" "$STORE/logs" "$@"
    (cd "$STORE/bundle" && exec runc --root "$STORE/runc" run $NAME) > "$STORE/container.log" 2>&1 &
    container=$!
    until grep -q 'wallprof: armed' "$STORE/container.log"; do
        kill -0 $container 2> /dev/null || return 1
        ((SECONDS < until)) || fail "it is not armed in 200 s: $(cat "$STORE/container.log")"
        sleep 0.2
    done
    pid=$(run_c state $NAME | jq .pid)
}

stop() {
    local status=0
    run_c kill $NAME TERM
    wait $container || status=$?
    [ $status = 0 ] || fail "it ended with $status: $(cat "$STORE/container.log")"
}

# Groups of the first version have no real-time unless each of their parents gives them some.
grants_real_time() { [ ! -e /sys/fs/cgroup/cpu/cpu.rt_runtime_us ]; }

# As a kubelet and Prometheus ask: by the address of the pod.
get() { nsenter --net="/proc/$pid/ns/net" curl -sf --max-time 5 -H 'Host: 10.244.1.7:9101' "localhost:9101$1"; }

check_rights() {
    local priority=priority
    grants_real_time || { leave_out "the priority: control groups of the first version grant none"; priority=-; }
    start || fail "it does not start: $(cat "$STORE/container.log")"
    local mask until=$((SECONDS + 30))
    # DAC_READ_SEARCH, SYS_PTRACE, SYSLOG, PERFMON, BPF, CHECKPOINT_RESTORE and SYS_NICE
    mask=$(awk '/^Cap(Eff|Bnd|Prm)/ { print $2 }' "/proc/$pid/status" | sort -u)
    [ "$mask" = 000001c400880004 ] || fail "its capabilities are $mask"
    grep -q '^NoNewPrivs:.*1' "/proc/$pid/status" || fail "it may get new privileges"
    [ "$profile" = - ] || grep -q '^Seccomp:.*2' "/proc/$pid/status" || fail "it has no seccomp filter"
    run_c exec $NAME wallprof doctor > "$STORE/doctor.txt" || fail "doctor: $(cat "$STORE/doctor.txt")"
    ! grep -E "^(NO|less) +(permissions|other processes|kernel symbols|process numbers|$priority)" "$STORE/doctor.txt" || fail "doctor asks for more"
    passed "doctor asks for no other rights"
    get /-/healthy > /dev/null || fail "the probe fails"
    until get /metrics | grep 'wallprof_stalls_total{process="lock"' | grep -q 'pod="web-1"'; do
        ((SECONDS < until)) || fail "no stalls of the pod: $(get /metrics | grep stalls_total | head -20)"
        sleep 1
    done
    get /metrics | grep 'wallprof_stalls_total{process="lock"' | grep -q 'namespace="shop",pod="web-1",container="nginx"' || fail "no names"
    run_c exec $NAME wallprof ctl status | grep -q ^armed || fail "ctl"
    ! run_c exec $NAME wallprof record -o /x.db -- true 2> /dev/null || fail "its root can be written to"
    stop
    local recording=$STORE/bundle/volumes/recording/wallprof.db
    "$WALLPROF" report --json "$recording" > /dev/null || fail "the recording does not open"
    "$WALLPROF" stalls --json --container 'shop/web-1/*' "$recording" > "$STORE/stalls.json" || fail "no stalls of the pod"
    jq -e -s 'all(.[]; .pod == "shop/web-1/nginx" and .container == "'$ID'")' "$STORE/stalls.json" > /dev/null ||
        fail "stalls without the name of the pod: $(head -1 "$STORE/stalls.json")"
    passed "watch with the rights of the manifest: doctor, probe, metrics, names of pods in them and in the recording, ctl, SIGTERM"
}

# The stalls of a process with a function, of those in `stacks.txt`.
shown() { # PID FUNCTION
    grep "^$1 " "$STORE/stacks.txt" | grep -c "\"$2" || true
}

check_needed() { # CAPABILITY
    local named deleted foreign kernel
    if ! start "-$1"; then
        say "without $1: it does not start: $(tail -1 "$STORE/container.log")"
        return
    fi
    sleep 6
    run_c exec $NAME wallprof doctor 2> /dev/null | grep -E '^(NO|less) +(permissions|other processes|kernel symbols|priority)' > "$STORE/lacks.txt" || true
    cat "$STORE/lacks.txt" >&2
    stop
    "$WALLPROF" stalls --json --thread engine --reason lock "$STORE/bundle/volumes/recording/wallprof.db" |
        jq -r '"\(.pid) \([.user_stack[]?, .kernel_stack[]? | .symbol] | tojson)"' > "$STORE/stacks.txt"
    named=$(shown "$lock_pid" take_registry_lock) foreign=$(shown "$foreign_pid" take_registry_lock)
    deleted=$(shown "$deleted_pid" "[^\"]*mutex_lock[^\"]*\"") kernel=$(shown "$lock_pid" futex_)
    say "without $1: stalls with names of functions: $named of a root's program, $foreign of another user's that only" \
        "that user may read, $deleted of a deleted library; $kernel with names of the kernel"
    [ "$1" = none ] && { ((named && foreign && deleted && kernel)) || fail "with all of them, something has no name"; return; }
    # Which names are there does not depend on the priority.
    [ "$1" != SYS_NICE ] || { grep -q '^less *priority' "$STORE/lacks.txt" || fail "$1 is not needed"; return; }
    ((!named || !foreign || !deleted || !kernel)) || fail "$1 is not needed"
}

start_workload() {
    other=$(mktemp -d) gone=$(mktemp -d)
    cp "$SCENARIOS/lock" "$other/foreign" && cp "$(ldd "$SCENARIOS/lock" | awk '/libc.so/ { print $3 }')" "$gone"
    mkdir -p "$STORE/logs" && rm -f "$STORE/logs"/*
    ln -s /nowhere "$STORE/logs/web-1_shop_nginx-$ID.log"
    chown -R 65534:65534 "$other" && chmod 700 "$other" "$other/foreign"
    setpriv --reuid=65534 --regid=65534 --clear-groups "$other/foreign" -d 600 -n 20 > /dev/null & foreign_pid=$!
    LD_LIBRARY_PATH=$gone "$SCENARIOS/lock" -d 600 -n 20 > /dev/null & deleted_pid=$!
    group=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)/wallprof-test/cri-containerd-$ID.scope
    mkdir -p "$group"
    (echo "$BASHPID" > "$group/cgroup.procs"; exec "$SCENARIOS/lock" -d 600 -n 20) > /dev/null & lock_pid=$!
    workload="$foreign_pid $deleted_pid $lock_pid"
    sleep 0.5
    rm "$gone"/libc.so*
}

mkdir -p "$STORE"
python_packages || fail "pip cannot install PyYAML and kubernetes-validate"
check_chart
check_schemas
[ -x "$WALLPROF" ] || fail "there is no $WALLPROF: make release"
[ -x "$SCENARIOS/lock" ] || fail "there is no $SCENARIOS/lock: make scenarios"
[ "$(id -u)" = 0 ] || { skip "the rights: this needs root"; exit 0; }
for program in runc curl jq; do
    command -v $program > /dev/null || { skip "the rights: there is no $program"; exit 0; }
done
profile=$(seccomp_profile) || { skip "seccomp: there is no profile (go, $PROFILES)"; profile=-; }
workload=
trap tear_down EXIT
start_workload
check_rights
check_needed none
for capability in BPF PERFMON SYS_PTRACE SYSLOG DAC_READ_SEARCH CHECKPOINT_RESTORE; do
    check_needed $capability
done
! grants_real_time || check_needed SYS_NICE
passed "each capability is needed"
