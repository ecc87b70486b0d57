// SPDX-License-Identifier: Apache-2.0
//! The container of a thread, by the path of its control group.

/// Digits of an id of docker, containerd, CRI-O and podman.
const ID_DIGITS: usize = 64;
const SHORT_DIGITS: usize = 12;

/// What container managers write before the id in the name of a control group.
const PREFIXES: [&str; 7] =
    ["docker-", "cri-containerd-", "crio-", "libpod-", "containerd-", "cri-o-", "nerdctl-"];

/// The id of a container, as its manager shows it: 64 hexadecimal digits of docker, containerd, CRI-O and
/// podman, the name of a machine of systemd-nspawn. `path` is as in `/proc/PID/cgroup`, of version 1 or 2. Of
/// nested containers it is the innermost. `None`: the path names no container of a known manager.
pub fn container_from_cgroup(path: &str) -> Option<String> {
    path.rsplit('/').find_map(|part| {
        let name = part.strip_suffix(".scope").or(part.strip_suffix(".service")).unwrap_or(part);
        // The cgroupfs driver of containerd: `kubepods-...:cri-containerd:ID`.
        let name = name.rsplit(':').next().unwrap_or(name);
        let id = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        // `libpod-conmon-ID` is podman's monitor, outside of the container: what is left is no id.
        if is_id(id) {
            return Some(id.to_owned());
        }
        let machine = name.strip_prefix("systemd-nspawn@").or(name.strip_prefix("machine-"));
        machine.filter(|machine| !machine.is_empty()).map(unescaped)
    })
}

/// The container as `docker ps` shows it: 12 of the digits of an id, and a name as it is.
pub fn short_container(container: &str) -> &str {
    if is_id(container) { &container[..SHORT_DIGITS] } else { container }
}

pub(crate) fn is_id(name: &str) -> bool {
    name.len() == ID_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// systemd writes `-` and other characters of a name as `\x2d`.
fn unescaped(name: &str) -> String {
    let mut parts = name.split("\\x");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if byte.is_ascii() => {
                plain.push(char::from(byte));
                plain += &part[2..];
            }
            _ => {
                plain += "\\x";
                plain += part;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4ae1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e";

    #[test]
    fn ids_of_each_manager_and_version_are_found() {
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/system.slice/docker-{ID}.scope/init.scope"),
            format!("/kubepods/besteffort/pod8dbc5577-d0e2-4706-8787-57d52c03ddf2/{ID}"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-{ID}.scope"
            ),
            format!("/system.slice/containerd.service/kubepods-burstable-pod1.slice:cri-containerd:{ID}"),
            format!("/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope"),
            format!("/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope/container"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
            format!("/libpod_parent/libpod-{ID}"),
            format!("/../../docker/{ID}"),
            format!("/docker/{}/docker/{ID}", ID.replace('3', "4")),
        ] {
            assert_eq!(container_from_cgroup(&path).as_deref(), Some(ID), "{path}");
        }
    }

    #[test]
    fn machines_of_systemd_have_their_names() {
        for (path, name) in [
            ("/machine.slice/machine-web\\x2d1.scope/payload", "web-1"),
            ("/machine.slice/machine-a\\xzz\\x.scope", "a\\xzz\\x"),
            ("/machine.slice/systemd-nspawn@debian.service/payload", "debian"),
        ] {
            assert_eq!(container_from_cgroup(path).as_deref(), Some(name), "{path}");
        }
    }

    #[test]
    fn other_groups_are_no_containers() {
        for path in [
            "/",
            "",
            "/init.scope",
            "/system.slice/docker.service",
            "/system.slice/containerd.service",
            "/user.slice/user-1000.slice/session-2.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8dbc5577.slice",
            "/machine.slice",
            "/machine.slice/machine-.scope",
            "/docker/abc",
            &format!("/machine.slice/libpod-conmon-{ID}.scope"),
            &format!("/docker/{}", ID.replace('a', "g")),
        ] {
            assert_eq!(container_from_cgroup(path), None, "{path}");
        }
    }
}
