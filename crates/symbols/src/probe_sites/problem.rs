// SPDX-License-Identifier: Apache-2.0
//! Why a span has no places, as a fact and as a sentence.

use std::fmt;
use std::io;

use super::shown::{listed, shown};
use super::{MAX_ENDS, MAX_FUNCTION, MAX_PROBES, SpanTarget};
use crate::demangle::readable_name;

/// Why the places of a span cannot be found. The message is one sentence.
#[derive(Debug)]
pub struct ProbeSitesError {
    /// What the user named.
    pub target: Box<SpanTarget>,
    /// The fact.
    pub problem: SiteProblem,
}

/// A fact about the file of a span, or about its function or probes. Addresses are ELF virtual addresses.
#[derive(Debug)]
#[non_exhaustive]
pub enum SiteProblem {
    /// The file cannot be opened.
    Unreadable(io::Error),
    /// The file does not begin as an ELF file.
    NotElf,
    /// An ELF file of another processor, or a 32-bit one.
    ForeignElf,
    /// A header of the file lies outside of it or is too large.
    DamagedHeaders,
    /// The file has no section `.note.stapsdt`, or no probe in it.
    NoUsdtProbes,
    /// A note of section `.note.stapsdt` is damaged, or an address in it is outside of the file's code or data.
    DamagedNotes,
    /// No probe has this provider.
    NoProvider {
        /// The nearest ones of the file's.
        known: Vec<String>,
    },
    /// The provider has no such probe.
    NoProbe {
        /// The unknown name.
        name: String,
        /// The nearest ones of the provider's.
        known: Vec<String>,
    },
    /// One probe has more than `MAX_PROBES` places.
    TooManyProbes {
        /// The probe.
        name: String,
        /// Its places.
        count: usize,
    },
    /// The file has a full symbol table, and no such function in it.
    NoFunction {
        /// Names that are alike.
        known: Vec<String>,
    },
    /// The file has no full symbol table, and no dynamic symbol of this name.
    NoFunctionStripped {
        /// Names that are alike.
        known: Vec<String>,
    },
    /// The name is that of several functions.
    SeveralFunctions {
        /// The address and the symbol of each.
        found: Vec<(u64, String)>,
    },
    /// A program in Go, whose calls move between threads and between stacks.
    GoProgram,
    /// The program selects the function behind this symbol when it starts (`STT_GNU_IFUNC`).
    IndirectFunction,
    /// The file calls the function, which is in another file.
    ImportedFunction,
    /// The search took too long.
    TooManySymbols,
    /// Neither the symbol nor a next one says where the function ends.
    NoSize,
    /// The function has more than `MAX_FUNCTION` bytes.
    TooLarge {
        /// Its bytes.
        size: u64,
    },
    /// The address is not in the executable segments of the file.
    NotInFile {
        /// The address.
        address: u64,
    },
    /// The bytes at this address are no instruction.
    NotCode {
        /// The address.
        address: u64,
    },
    /// The function does not return.
    NoEnd,
    /// The function ends in nothing but indirect jumps.
    OnlyUnclearEnds,
    /// The function has more than `MAX_ENDS` ends.
    TooManyEnds {
        /// Its ends.
        count: usize,
    },
    /// The first instruction of the function is also its end.
    OneInstruction,
}

impl SiteProblem {
    /// Names in one message.
    pub(super) const MAX_NAMES: usize = 8;
}

impl fmt::Display for ProbeSitesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = shown(&self.target.path().to_string_lossy());
        match &*self.target {
            SpanTarget::Uprobe { function, .. } => self.write_of_function(f, &path, &shown(function)),
            SpanTarget::Usdt { provider, .. } => self.write_of_probes(f, &path, &shown(provider)),
        }
    }
}

impl ProbeSitesError {
    fn write_of_file(&self, f: &mut fmt::Formatter<'_>, path: &str) -> fmt::Result {
        match &self.problem {
            SiteProblem::Unreadable(cause) => {
                write!(
                    f,
                    "cannot read {path} ({cause}); give the path of a program or library that this user can read"
                )
            }
            SiteProblem::NotElf => {
                write!(f, "{path} is no ELF file; for a script give the program that runs it")
            }
            SiteProblem::ForeignElf => {
                write!(f, "{path} is no 64-bit x86-64 program; spans can be measured in no other one")
            }
            _ => write!(f, "the headers of {path} are damaged; build or install the file again"),
        }
    }

    fn write_of_probes(&self, f: &mut fmt::Formatter<'_>, path: &str, provider: &str) -> fmt::Result {
        match &self.problem {
            SiteProblem::NoUsdtProbes => {
                write!(f, "{path} has no USDT probes; give a file for which `readelf -n` lists stapsdt notes")
            }
            SiteProblem::DamagedNotes => {
                write!(f, "the list of USDT probes in {path} is damaged; build or install the file again")
            }
            SiteProblem::NoProvider { known } => {
                let known = listed(known);
                write!(f, "no USDT probe in {path} has the provider '{provider}'; give one of these: {known}")
            }
            SiteProblem::NoProbe { name, known } => {
                let (name, known) = (shown(name), listed(known));
                write!(
                    f,
                    "provider '{provider}' in {path} has no probe '{name}'; its nearest ones are {known}"
                )
            }
            SiteProblem::TooManyProbes { name, count } => {
                let name = shown(name);
                write!(
                    f,
                    "probe '{provider}:{name}' has {count} places in {path}, more than {MAX_PROBES}; give another probe"
                )
            }
            _ => self.write_of_file(f, path),
        }
    }

    fn write_of_function(&self, f: &mut fmt::Formatter<'_>, path: &str, function: &str) -> fmt::Result {
        match &self.problem {
            SiteProblem::NoFunction { known } => {
                write!(
                    f,
                    "{path} has no function '{function}'; {}",
                    advice(known, "`nm -C` lists its functions")
                )
            }
            SiteProblem::NoFunctionStripped { known } => {
                let advice = advice(
                    known,
                    "install the package with its debug symbols, or give a function that it exports",
                );
                write!(f, "{path} is stripped and exports no function '{function}'; {advice}")
            }
            SiteProblem::SeveralFunctions { found } => write_several(f, path, function, found),
            SiteProblem::GoProgram => write!(
                f,
                "{path} is a program in Go, whose calls move between threads; record its busy periods, or import the \
                 operations that it logs (`wallprof import --spans`)"
            ),
            SiteProblem::IndirectFunction => write!(
                f,
                "{path} selects the function behind '{function}' when it starts (IFUNC); give the selected function, as a profile shows it"
            ),
            SiteProblem::ImportedFunction => {
                write!(f, "{path} calls '{function}' in a library; give the path of that library")
            }
            SiteProblem::TooManySymbols => write!(
                f,
                "the search for '{function}' in the symbols of {path} took too long; give the function as `nm` lists it in a file with fewer symbols"
            ),
            _ => self.write_of_code(f, path, function),
        }
    }

    fn write_of_code(&self, f: &mut fmt::Formatter<'_>, path: &str, function: &str) -> fmt::Result {
        const OTHER: &str = "give another function, or USDT probes";
        match &self.problem {
            SiteProblem::NoSize => write!(f, "no symbol of {path} says where '{function}' ends; {OTHER}"),
            SiteProblem::TooLarge { size } => {
                write!(f, "'{function}' in {path} has {size} bytes, more than {MAX_FUNCTION}; {OTHER}")
            }
            SiteProblem::NotInFile { address } => {
                write!(
                    f,
                    "the code of '{function}' at {address:#x} is not in {path}; give the file with its code"
                )
            }
            SiteProblem::NotCode { address } => {
                write!(f, "'{function}' in {path} has bytes at {address:#x} that are no instruction; {OTHER}")
            }
            SiteProblem::NoEnd => {
                write!(f, "'{function}' in {path} never returns, so that a span would not end; {OTHER}")
            }
            SiteProblem::OnlyUnclearEnds => {
                write!(
                    f,
                    "'{function}' in {path} ends only in indirect jumps, whose targets are unknown; {OTHER}"
                )
            }
            SiteProblem::TooManyEnds { count } => {
                write!(f, "'{function}' in {path} ends at {count} places, more than {MAX_ENDS}; {OTHER}")
            }
            SiteProblem::OneInstruction => {
                write!(
                    f,
                    "'{function}' in {path} ends with its first instruction; give the function that does the work"
                )
            }
            _ => self.write_of_file(f, path),
        }
    }
}

fn advice(known: &[String], otherwise: &str) -> String {
    if known.is_empty() { otherwise.to_owned() } else { format!("these names are alike: {}", listed(known)) }
}

fn write_several(
    f: &mut fmt::Formatter<'_>,
    path: &str,
    function: &str,
    found: &[(u64, String)],
) -> fmt::Result {
    let shown_ones = found.iter().take(SiteProblem::MAX_NAMES).map(|(address, symbol)| {
        let is_readable = readable_name(symbol).as_deref() == Some(symbol);
        let symbol =
            if is_readable && symbol == function { String::new() } else { format!(" {}", shown(symbol)) };
        format!("{address:#x}{symbol}")
    });
    let list = shown_ones.collect::<Vec<_>>().join(", ");
    let more = match found.len().saturating_sub(SiteProblem::MAX_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    write!(
        f,
        "{path} has {} functions '{function}'; give one by its address or symbol: {list}{more}",
        found.len()
    )
}

impl std::error::Error for ProbeSitesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            SiteProblem::Unreadable(cause) => Some(cause),
            _ => None,
        }
    }
}
