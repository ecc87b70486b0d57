// SPDX-License-Identifier: Apache-2.0
//! The pods of containers, by the names of the files in a kubelet's `/var/log/containers`.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::container::is_id;

/// A container as Kubernetes names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodContainer {
    /// The namespace of the pod in the cluster.
    pub namespace: String,
    /// The name of the pod, unique in its namespace.
    pub pod: String,
    /// The name in the pod, which others may have in theirs.
    pub container: String,
}

impl PodContainer {
    /// The id and the names in `POD_NAMESPACE_CONTAINER-ID.log` (`logSymlink()` in the kubelet's
    /// `kuberuntime/legacy.go`). `None` for other names, and for names that the kubelet cut at 255 bytes, whose
    /// ids are not whole.
    fn from_log_name(name: &str) -> Option<(String, Self)> {
        let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
        let mut names = names.split('_').map(|name| is_name(name).then(|| name.to_owned()));
        let (pod, namespace, container) = (names.next()??, names.next()??, names.next()??);
        let whole = is_id(id) && names.next().is_none();
        whole.then(|| (id.to_owned(), PodContainer { namespace, pod, container }))
    }
}

/// `NAMESPACE/POD/CONTAINER`, as [`fmt::Display`] writes it. The error: the text has another form.
impl FromStr for PodContainer {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut names = text.split('/').map(|name| is_name(name).then(|| name.to_owned()));
        let mut next = || names.next().flatten().ok_or(());
        let (namespace, pod, container) = (next()?, next()?, next()?);
        if names.next().is_some() { Err(()) } else { Ok(PodContainer { namespace, pod, container }) }
    }
}

impl fmt::Display for PodContainer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// A subdomain of RFC 1123, as are names of pods; those of namespaces and containers have no dots.
fn is_name(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    !name.is_empty() && name.bytes().all(allowed)
}

/// The containers of this node's pods, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodContainers(HashMap<String, Arc<PodContainer>>);

impl PodContainers {
    /// By names of files as in `/var/log/containers`. Names of another form are left out.
    pub fn from_log_names(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let found = names.into_iter().filter_map(|name| PodContainer::from_log_name(name.as_ref()));
        PodContainers(found.map(|(id, container)| (id, Arc::new(container))).collect())
    }

    /// By the whole id of the container: 64 hexadecimal digits, as [`crate::container_from_cgroup`] returns
    /// it. `None`: no container of a pod.
    pub fn get(&self, id: &str) -> Option<&Arc<PodContainer>> {
        self.0.get(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4ae1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e";

    #[test]
    fn names_of_a_log_are_those_of_pod_namespace_and_container() {
        for (names, expected) in [
            ("web-7f9c-x2x_shop_nginx", "shop/web-7f9c-x2x/nginx"),
            ("etcd-node-1.example_kube-system_etcd", "kube-system/etcd-node-1.example/etcd"),
            ("a_b_side-car", "b/a/side-car"),
        ] {
            let containers = PodContainers::from_log_names([format!("{names}-{ID}.log")]);
            let found = containers.get(ID).map(ToString::to_string);
            assert_eq!(found.as_deref(), Some(expected), "{names}");
            assert_eq!(expected.parse::<PodContainer>().as_ref(), Ok(&**containers.get(ID).unwrap()));
        }
    }

    #[test]
    fn text_of_another_form_is_no_container() {
        for text in ["", "shop/web", "shop/web/nginx/more", "shop//nginx", "shop/web/<img>", "Shop/web/nginx"]
        {
            assert_eq!(text.parse::<PodContainer>(), Err(()), "{text}");
        }
    }

    #[test]
    fn other_file_names_are_left_out() {
        let cut = &ID[..40];
        for name in [
            "",
            ".log",
            "syslog",
            &format!("{ID}.log"),
            &format!("web_shop_nginx-{cut}.log"),
            &format!("web_shop_nginx-{ID}"),
            &format!("web_shop-{ID}.log"),
            &format!("web__nginx-{ID}.log"),
            &format!("web_shop_nginx_more-{ID}.log"),
            &format!("web\n_shop_nginx-{ID}.log"),
            &format!("<img>_shop_nginx-{ID}.log"),
        ] {
            assert_eq!(PodContainers::from_log_names([name]), PodContainers::default(), "{name}");
        }
    }
}
