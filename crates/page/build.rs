// SPDX-License-Identifier: Apache-2.0
//! Makes the page around the data from `web/`: all modules as one script, with the hashes that the page's
//! Content-Security-Policy lets run.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// The modules in the order in which they use each other.
const MODULES: [&str; 16] = [
    "format",
    "data",
    "ledger",
    "selection",
    "stacks",
    "stalls",
    "heat",
    "colours",
    "dom",
    "timeline",
    "charts",
    "maps",
    "table",
    "flame",
    "spans",
    "main",
];

fn main() {
    let web = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("web");
    println!("cargo:rerun-if-changed={}", web.display());
    let vendored = web.join("vendor/uplot");
    let licence = read(&vendored.join("LICENSE"));
    let uplot = format!("/* uPlot\n\n{}*/\n{}", licence, read(&vendored.join("uPlot.iife.min.js")));
    let script = format!("{uplot}\n(() => {{\n\"use strict\";\n{}}})();\n", bundle(&web));
    let style = format!("{}\n{}", read(&vendored.join("uPlot.min.css")), read(&web.join("page.css")));
    for (name, text) in [("script", &script), ("style", &style)] {
        assert!(!text.contains(&format!("</{name}")), "the {name} would end early");
    }
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        hash(&script),
        hash(&style)
    );
    let page = read(&web.join("page.html"))
        .replace("{{policy}}", &policy)
        .replace("{{style}}", &style)
        .replace("{{script}}", &script);
    let (before, after) = page.split_once("{{data}}").expect("page.html has a place for the data");
    let out = PathBuf::from(variable("OUT_DIR"));
    for (name, text) in [("before.html.gz", before), ("after.html.gz", after)] {
        fs::write(out.join(name), compressed(text)).expect("OUT_DIR is writable");
    }
}

/// The code of the page would be a seventieth of the program.
fn compressed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("memory takes all")
}

/// All modules in one scope: lines of `import` and the word `export` fall away, so that no two modules may have
/// the same name at their outermost level.
fn bundle(web: &Path) -> String {
    let mut names = HashSet::new();
    let mut script = String::new();
    for module in MODULES {
        script += &format!("// {module}.js\n");
        for line in read(&web.join(format!("{module}.js"))).lines() {
            if line.starts_with("// SPDX-") {
                continue;
            }
            if line.starts_with("import ") {
                assert!(line.ends_with(';'), "{module}.js: an import takes one line");
                continue;
            }
            let line = line.strip_prefix("export ").unwrap_or(line);
            if let Some(name) = declared(line) {
                assert!(names.insert(name.to_owned()), "{module}.js: `{name}` is declared twice");
            }
            script += line;
            script.push('\n');
        }
    }
    script
}

/// The name that a line at the outermost level declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.strip_prefix("async ").unwrap_or(line);
    let words = ["const ", "let ", "function ", "class "];
    let rest = words.iter().find_map(|word| line.strip_prefix(word))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next().filter(|name| !name.is_empty())
}

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
