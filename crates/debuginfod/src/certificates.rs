// SPDX-License-Identifier: Apache-2.0
//! The authorities that this machine trusts, for servers that speak TLS.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ureq::tls::{Certificate, PemItem, parse_pem};

/// Debian and Arch, Fedora and its relatives, SUSE.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];
/// Bundles have some 200 KiB.
const MAX_BUNDLE: u64 = 8 << 20;

/// All certificates of the bundle at `wanted`, or of the first default one that exists. Damaged ones are left
/// out.
pub(crate) fn trusted(wanted: Option<&Path>) -> Vec<Certificate<'static>> {
    let places: Vec<PathBuf> = match wanted {
        Some(path) => vec![path.to_owned()],
        None => BUNDLES.iter().map(PathBuf::from).collect(),
    };
    let bundles = places.iter().map(|path| from_bundle(path));
    bundles.into_iter().find(|certificates| !certificates.is_empty()).unwrap_or_default()
}

fn from_bundle(path: &Path) -> Vec<Certificate<'static>> {
    let mut pem = Vec::new();
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    let read = is_file.then(|| File::open(path).and_then(|file| file.take(MAX_BUNDLE).read_to_end(&mut pem)));
    if !matches!(read, Some(Ok(_))) {
        return Vec::new();
    }
    let certificates = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    certificates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_gives_none() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("bundle.pem");
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nnot base64\n-----END CERTIFICATE-----\n")
            .expect("written");
        assert!(trusted(Some(&path)).is_empty());
        assert!(trusted(Some(folder.path())).is_empty() && trusted(Some(Path::new("/nowhere"))).is_empty());
    }
}
