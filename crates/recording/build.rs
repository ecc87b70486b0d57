// SPDX-License-Identifier: Apache-2.0
//! Compresses the SQL of the schema, which the binary contains.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::{env, fs};

use flate2::Compression;
use flate2::read::GzEncoder;

fn main() -> io::Result<()> {
    let variable = |name: &str| PathBuf::from(env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}")));
    let (sources, out) = (variable("CARGO_MANIFEST_DIR").join("sql"), variable("OUT_DIR"));
    for name in ["tables.sql", "views.sql"] {
        let source = sources.join(name);
        println!("cargo:rerun-if-changed={}", source.display());
        let mut compressed = Vec::new();
        GzEncoder::new(File::open(source)?, Compression::best()).read_to_end(&mut compressed)?;
        fs::write(out.join(format!("{name}.gz")), compressed)?;
    }
    println!("cargo:rerun-if-changed=build.rs");
    Ok(())
}
