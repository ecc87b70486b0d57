# SPDX-License-Identifier: Apache-2.0
"""Writes an OCI bundle for runc from a DaemonSet, as a kubelet and containerd make it.

    bundle.py MANIFEST FOLDER BINARY SECCOMP LOGS [-CAPABILITY]

Owns the translation of the pod's fields. A field of the security context without a translation is an error, so that
the test has all rights that the manifest has, and no others. SECCOMP is the default profile of the runtimes as
JSON (`-`: none), LOGS stands for the host's folder of /var/log/containers. `-SYSLOG` leaves out a capability.
"""

import json
import os
import re
import subprocess
import sys

import yaml

NODE = "this-node"

# What the CRI of containerd masks and write-protects in a container that is not privileged.
MASKED = ["acpi", "asound", "kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "scsi"]
READ_ONLY = ["bus", "fs", "irq", "sys", "sysrq-trigger"]


def documents(path):
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def only(kind, found):
    [one] = [document for document in found if document["kind"] == kind]
    return one


def taken(fields, *names):
    """The values of `names`; other fields are an error."""
    unknown = set(fields) - set(names)
    if unknown:
        sys.exit(f"bundle.py has no translation of {', '.join(sorted(unknown))}: add it")
    return [fields.get(name) for name in names]


def seccomp(profile, capabilities, kernel):
    """The rules of moby's profile that hold for these capabilities: its loader does the same."""

    def holds(rule, absent):
        wanted = rule.get("caps", [])
        arches = rule.get("arches", [])
        least = rule.get("minKernel")
        facts = [set(wanted) <= capabilities] if wanted else []
        facts += [bool({"amd64", "x86", "x32"} & set(arches))] if arches else []
        facts += [kernel >= tuple(int(part) for part in least.split("."))] if least else []
        return all(facts) if facts else absent

    rules = []
    for rule in profile["syscalls"]:
        if holds(rule.get("includes", {}), True) and not holds(rule.get("excludes", {}), False):
            rules.append({key: rule[key] for key in ("names", "action", "args", "errnoRet") if rule.get(key) is not None})
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": rules,
    }


def bind(source, target, *options):
    return {"destination": target, "type": "bind", "source": source, "options": ["rbind", "rprivate", *options]}


def volumes(pod, manifest, folder, logs):
    """The folder of each volume on this machine."""
    folders = {}
    for volume in pod["volumes"]:
        source = os.path.join(folder, "volumes", volume["name"])
        os.makedirs(source, exist_ok=True)
        if "configMap" in volume:
            [config] = [d for d in manifest if d["kind"] == "ConfigMap" and d["metadata"]["name"] == volume["configMap"]["name"]]
            for name, text in config["data"].items():
                with open(os.path.join(source, name), "w", encoding="utf-8") as file:
                    file.write(text)
        elif "hostPath" in volume:
            assert volume["hostPath"] == {"path": "/var/log/containers"}, volume
            source = logs
        else:
            assert "emptyDir" in volume, volume
        folders[volume["name"]] = source
    return folders


def program(binary):
    """Mounts of the binary, and of its libraries if it is not static: they stand for the image."""
    libraries = subprocess.run(["ldd", binary], capture_output=True, text=True).stdout
    found = sorted(set(re.findall(r"(/\S+) \(0x", libraries)))
    own = [bind(binary, "/usr/local/bin/wallprof", "ro")]
    return own + [bind(os.path.realpath(library), library, "ro") for library in found]


def config(manifest, folder, binary, profile, logs, without):
    pod = only("DaemonSet", manifest)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    privileged, escalates, read_only, user, group, sets, filter_of, armor = taken(
        container["securityContext"],
        "privileged", "allowPrivilegeEscalation", "readOnlyRootFilesystem", "runAsUser", "runAsGroup",
        "capabilities", "seccompProfile", "appArmorProfile",
    )
    assert not privileged and read_only and sets["drop"] == ["ALL"], "not the rights that this test is about"
    assert filter_of == {"type": "RuntimeDefault"} and armor == {"type": "Unconfined"}
    assert pod["hostPID"] is True and not pod.get("hostNetwork") and not pod.get("securityContext")
    capabilities = {f"CAP_{name}" for name in sets["add"]} - {f"CAP_{without}"}
    names = sorted(capabilities)

    places = volumes(pod, manifest, folder, logs)
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]},
    ]
    for mount in container["volumeMounts"]:
        name, path, protected = taken(mount, "name", "mountPath", "readOnly")
        mounts.append(bind(places[name], path, "ro" if protected else "rw"))
    arguments = [argument.replace("$(NODE_NAME)", NODE) for argument in container["command"]]
    variables = [f"{variable['name']}={variable.get('value', NODE)}" for variable in container["env"]]
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": user, "gid": group},
            "args": arguments,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *variables],
            "cwd": "/",
            # Root's capabilities after execve; a kubelet gives none ambient.
            "capabilities": {"bounding": names, "effective": names, "permitted": names},
            "noNewPrivileges": not escalates,
        },
        "root": {"path": "rootfs", "readonly": read_only},
        "hostname": "wallprof-x7k2p",
        "mounts": mounts + program(binary),
        "linux": {
            # hostPID: there is no pid namespace.
            "namespaces": [{"type": kind} for kind in ("mount", "network", "uts", "ipc")],
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                "memory": {"limit": int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30},
            },
            "maskedPaths": [f"/proc/{name}" for name in MASKED] + ["/sys/firmware", "/sys/devices/virtual/powercap"],
            "readonlyPaths": [f"/proc/{name}" for name in READ_ONLY],
            **({"seccomp": seccomp(profile, capabilities, release)} if profile else {}),
        },
    }


def main():
    manifest, folder, binary, profile, logs, *without = sys.argv[1:]
    found = None
    if profile != "-":
        with open(profile, encoding="utf-8") as file:
            found = json.load(file)
    os.makedirs(os.path.join(folder, "rootfs"), exist_ok=True)
    without = without[0].removeprefix("-") if without else ""
    result = config(documents(manifest), folder, os.path.realpath(binary), found, logs, without)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)


main()
