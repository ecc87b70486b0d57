// SPDX-License-Identifier: Apache-2.0
//! Generates `Reason` into OUT_DIR from the list that the kernel side shares (reasons.h is
//! bpf/include/reasons.h).

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

const HEADER: &str = "reasons.h";

fn main() {
    println!("cargo:rerun-if-changed={HEADER}");
    let header = fs::read_to_string(HEADER).unwrap_or_else(|error| panic!("{HEADER}: {error}"));
    let reasons: Vec<Reason> = header.lines().filter_map(Reason::from_line).collect();
    assert!(!reasons.is_empty(), "{HEADER} lists no reasons");
    for (index, reason) in reasons.iter().enumerate() {
        assert_eq!(reason.number, index, "{} is out of order", reason.variant);
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("reason.rs");
    fs::write(out, rust(&reasons)).expect("OUT_DIR is writable");
}

struct Reason {
    number: usize,
    /// `Lock`.
    variant: String,
    /// `lock`.
    name: String,
    voluntary: bool,
    /// What the thread waits for.
    object: String,
}

impl Reason {
    /// From `X(0, LOCK, INVOLUNTARY) /* a lock */`.
    fn from_line(line: &str) -> Option<Self> {
        let (fields, comment) = line.trim().strip_prefix("X(")?.split_once(')')?;
        let mut fields = fields.split(", ");
        let number = fields.next()?.parse().ok()?;
        let upper = fields.next()?;
        let name = upper.to_ascii_lowercase();
        let voluntary = fields.next()? == "VOLUNTARY";
        let object = comment.split_once("/* ").and_then(|(_, text)| text.split_once(" */"));
        let (object, _) = object.unwrap_or_else(|| panic!("{HEADER} does not say what {upper} waits for"));
        let variant = format!("{}{}", &upper[..1], &name[1..]);
        Some(Reason { number, variant, name, voluntary, object: object.into() })
    }
}

fn rust(reasons: &[Reason]) -> String {
    let each = |text: &dyn Fn(&Reason) -> String| reasons.iter().map(text).collect::<String>();
    let mut out = String::new();
    let variants = each(&|reason| {
        format!("    /// Waits for {}.\n    {} = {},\n", reason.object, reason.variant, reason.number)
    });
    let all = each(&|reason| format!("Reason::{}, ", reason.variant));
    let names = each(&|reason| format!("            Reason::{} => \"{}\",\n", reason.variant, reason.name));
    let voluntary: Vec<String> = reasons
        .iter()
        .filter(|reason| reason.voluntary)
        .map(|reason| format!("Reason::{}", reason.variant))
        .collect();
    write!(
        out,
        "/// Why a thread is blocked. The numbers are part of the recording format and of the kernel side.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]\n\
         #[repr(u8)]\n\
         pub enum Reason {{\n{variants}}}\n\n\
         impl Reason {{\n    \
             /// Reasons that exist: the length of arrays that [`Reason::code`] indexes.\n    \
             pub const COUNT: usize = {count};\n    \
             /// Each reason, in the order of the numbers.\n    \
             pub const ALL: [Reason; Self::COUNT] = [{all}];\n\n    \
             /// The kernel side's word in lower case, as it is in recordings and in JSON.\n    \
             pub fn name(self) -> &'static str {{\n        match self {{\n{names}        }}\n    }}\n\n    \
             /// Whether a thread enters such a wait voluntarily: no stall unless it overslept.\n    \
             pub fn is_voluntary(self) -> bool {{\n        matches!(self, {voluntary})\n    }}\n\
         }}\n",
        count = reasons.len(),
        voluntary = voluntary.join(" | "),
    )
    .expect("a String takes everything");
    out
}
