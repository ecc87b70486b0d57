// SPDX-License-Identifier: Apache-2.0
//! Places of USDT probes, from the notes that `sys/sdt.h` leaves in a program.
//!
//! Format: section `.note.stapsdt`, as SystemTap's wiki describes it in *User Space Probe Implementation*. A
//! note has the addresses of the probe, of section `.stapsdt.base` when the program was linked, and of the
//! probe's semaphore; behind them the provider, the name and the arguments. Programs such as prelink move
//! `.stapsdt.base` with the other sections and leave the notes as they are.

use std::collections::BTreeSet;

use super::layout::Layout;
use super::{MAX_PROBES, ProbeSite, SiteProblem};
use crate::elf_records;
use crate::read_at::{ReadAt, read_bounded};
use crate::section::Sections;

const NOTES: &str = ".note.stapsdt";
const BASE: &str = ".stapsdt.base";
const OWNER: &[u8] = b"stapsdt";
/// `_SDT_NOTE_TYPE`.
const KIND: u32 = 3;
/// A program with 100,000 probes has less.
const MAX_NOTES: u64 = 16 << 20;
/// The kernel's reference counter is 16 bits wide.
const SEMAPHORE_SIZE: u64 = 2;

/// One probe as its note describes it. Addresses are ELF virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note<'a> {
    address: u64,
    base: u64,
    /// 0: none.
    semaphore: u64,
    provider: &'a [u8],
    name: &'a [u8],
}

/// The places of each of two probes of one provider.
pub(super) fn sites<R: ReadAt + ?Sized>(
    source: &R,
    sections: &Sections,
    layout: &Layout,
    provider: &str,
    names: [&str; 2],
) -> Result<[Vec<ProbeSite>; 2], SiteProblem> {
    let bytes = note_bytes(source, sections)?;
    let notes = notes(&bytes)?;
    if notes.is_empty() {
        return Err(SiteProblem::NoUsdtProbes);
    }
    let of_provider: Vec<&Note> = notes.iter().filter(|note| note.provider == provider.as_bytes()).collect();
    if of_provider.is_empty() {
        let known = distinct(notes.iter().map(|note| note.provider));
        return Err(SiteProblem::NoProvider { known: nearest(known, provider) });
    }
    let base = sections.named(BASE).map(|section| section.address);
    let places = |name: &str| {
        let named: Vec<&Note> =
            of_provider.iter().copied().filter(|note| note.name == name.as_bytes()).collect();
        if named.is_empty() {
            let known = distinct(of_provider.iter().map(|note| note.name));
            return Err(SiteProblem::NoProbe { name: name.to_owned(), known: nearest(known, name) });
        }
        places_of(&named, base, layout, name)
    };
    Ok([places(names[0])?, places(names[1])?])
}

fn note_bytes<R: ReadAt + ?Sized>(source: &R, sections: &Sections) -> Result<Vec<u8>, SiteProblem> {
    let section = sections.all.iter().find(|section| section.name == NOTES && section.has_bytes());
    let section = section.ok_or(SiteProblem::NoUsdtProbes)?;
    read_bounded(source, section.offset, section.size, MAX_NOTES).ok_or(SiteProblem::DamagedNotes)
}

fn notes(bytes: &[u8]) -> Result<Vec<Note<'_>>, SiteProblem> {
    let mut notes = Vec::new();
    for note in elf_records::notes(bytes) {
        let note = note.ok_or(SiteProblem::DamagedNotes)?;
        if note.kind == KIND && note.owner == OWNER {
            notes.push(probe(note.description).ok_or(SiteProblem::DamagedNotes)?);
        }
    }
    Ok(notes)
}

fn probe(description: &[u8]) -> Option<Note<'_>> {
    let (address, rest) = description.split_first_chunk()?;
    let (base, rest) = rest.split_first_chunk()?;
    let (semaphore, texts) = rest.split_first_chunk()?;
    let (provider, texts) = text(texts)?;
    let (name, texts) = text(texts)?;
    text(texts)?;
    let [address, base, semaphore] = [address, base, semaphore].map(|bytes| u64::from_le_bytes(*bytes));
    Some(Note { address, base, semaphore, provider, name })
}

/// The text up to a zero byte, and the bytes behind that.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// One place for each address, in ascending order.
fn places_of(
    notes: &[&Note<'_>],
    base: Option<u64>,
    layout: &Layout,
    name: &str,
) -> Result<Vec<ProbeSite>, SiteProblem> {
    let mut places = Vec::new();
    for note in notes {
        let moved = base.filter(|_| note.base != 0).map_or(0, |base| base.wrapping_sub(note.base));
        let address = note.address.wrapping_add(moved);
        let offset = layout.code_offset(address, 1).ok_or(SiteProblem::DamagedNotes)?;
        let semaphore = match note.semaphore {
            0 => None,
            semaphore => {
                let address = semaphore.wrapping_add(moved);
                let offset = layout.data_offset(address, SEMAPHORE_SIZE);
                Some(offset.ok_or(SiteProblem::DamagedNotes)?)
            }
        };
        places.push(ProbeSite { offset, semaphore, condition: None });
    }
    places.sort_unstable_by_key(|site| (site.offset, site.semaphore));
    places.dedup_by_key(|site| site.offset);
    if places.len() > MAX_PROBES {
        return Err(SiteProblem::TooManyProbes { name: name.to_owned(), count: places.len() });
    }
    Ok(places)
}

fn distinct<'a>(names: impl Iterator<Item = &'a [u8]>) -> BTreeSet<&'a [u8]> {
    names.collect()
}

/// All names, or those that share the longest start with `wanted`.
fn nearest(names: BTreeSet<&[u8]>, wanted: &str) -> Vec<String> {
    let shared = |name: &[u8]| name.iter().zip(wanted.as_bytes()).take_while(|(a, b)| a == b).count();
    let mut names: Vec<&[u8]> = names.into_iter().collect();
    names.sort_by_key(|name| std::cmp::Reverse(shared(name)));
    names.truncate(SiteProblem::MAX_NAMES);
    names.into_iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Segment;
    use crate::section::Section;
    use proptest::prelude::*;

    /// A note with the addresses of the probe, of the base and of the semaphore, and with these texts.
    fn note(addresses: [u64; 3], texts: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [OWNER.len() as u32 + 1, 24 + texts.len() as u32, KIND] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"stapsdt\0");
        bytes.extend(addresses.into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(texts);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Code at 0x1000 and data at 0x2000, at the same offsets in a file of 0x3000 bytes. The base is at 0x1800.
    fn sites_of(notes: &[u8], provider: &str, names: [&str; 2]) -> Result<[Vec<ProbeSite>; 2], SiteProblem> {
        let mut image = vec![0; 0x3000];
        image.extend(notes);
        let section = |name: &str, address, offset, size| Section {
            name: name.into(),
            address,
            offset,
            size,
            ..Section::default()
        };
        let all = vec![section(NOTES, 0, 0x3000, notes.len() as u64), section(BASE, 0x1800, 0x1800, 1)];
        let sections = Sections { all, ..Sections::default() };
        let segment =
            |address, executable| Segment { offset: address, file_size: 0x1000, address, executable };
        let segments = vec![segment(0x1000, true), segment(0x2000, false)];
        let layout = Layout { segments, file_size: image.len() as u64 };
        sites(image.as_slice(), &sections, &layout, provider, names)
    }

    fn site(offset: u64, semaphore: Option<u64>) -> ProbeSite {
        ProbeSite { offset, semaphore, condition: None }
    }

    #[test]
    fn places_of_a_probe_ascend_and_follow_a_moved_base() {
        let notes = [
            note([0x1020, 0x1800, 0], b"p\0begin\08@%rax\0"),
            note([0x1010, 0x1800, 0x2004], b"p\0begin\0\0"),
            note([0x1010, 0x1800, 0x2004], b"p\0begin\0\0"),
            note([0x1040, 0, 0], b"p\0begin\0\0"),
            note([0x30, 0x800, 0x1008], b"p\0end\0\0"),
            note([0x1050, 0x1800, 0], b"q\0end\0\0"),
        ];
        let [begins, ends] = sites_of(&notes.concat(), "p", ["begin", "end"]).expect("probes");
        assert_eq!(begins, [site(0x1010, Some(0x2004)), site(0x1020, None), site(0x1040, None)]);
        assert_eq!(ends, [site(0x1030, Some(0x2008))]);
    }

    #[test]
    fn unknown_names_are_answered_with_known_ones() {
        let mut notes = note([0x1000, 0, 0], b"p\0query__start\0\0");
        for number in 0..20 {
            notes.extend(note([0x1000, 0, 0], format!("p\0n{number}\0\0").as_bytes()));
        }
        notes.extend(note([0x1000, 0, 0], b"q\0end\0\0"));
        match sites_of(&notes, "p", ["query_start", "n1"]) {
            Err(SiteProblem::NoProbe { name, known }) => {
                assert_eq!((&*name, &*known[0], known.len()), ("query_start", "query__start", 8));
            }
            other => panic!("{other:?}"),
        }
        match sites_of(&notes, "P", ["a", "b"]) {
            Err(SiteProblem::NoProvider { known }) => assert_eq!(known, ["p", "q"]),
            other => panic!("{other:?}"),
        }
        assert!(matches!(sites_of(&[], "p", ["a", "b"]), Err(SiteProblem::NoUsdtProbes)));
    }

    #[test]
    fn more_places_than_the_limit_are_refused() {
        let notes = |count: u64| -> Vec<u8> {
            (0..count).flat_map(|number| note([0x1000 + number, 0, 0], b"p\0a\0\0")).collect()
        };
        let most = [notes(64), note([0x1000, 0, 0], b"p\0b\0\0")].concat();
        assert_eq!(sites_of(&most, "p", ["a", "b"]).expect("probes")[0].len(), MAX_PROBES);
        let more = [notes(65), note([0x1000, 0, 0], b"p\0b\0\0")].concat();
        let refused = sites_of(&more, "p", ["a", "b"]);
        assert!(matches!(refused, Err(SiteProblem::TooManyProbes { count: 65, .. })), "{refused:?}");
    }

    #[test]
    fn damaged_notes_are_an_error() {
        let good = note([0x1000, 0, 0x2000], b"p\0a\0\0");
        assert!(sites_of(&good, "p", ["a", "a"]).is_ok());
        let mut damaged = vec![
            note([0x1000, 0, 0], b"p\0a\0no end"),
            note([0x1000, 0, 0], b"no end!!"),
            note([0x1000, 0, 0], b""),
            note([0x2000, 0, 0], b"p\0a\0\0"),
            note([0x1000, 0, 0x1000], b"p\0a\0\0"),
            note([0x1000, 0, 0x2fff], b"p\0a\0\0"),
            note([u64::MAX, 1, u64::MAX], b"p\0a\0\0"),
            good[..good.len() - 4].to_vec(),
            good[..8].to_vec(),
        ];
        for word in [0, 4] {
            let mut long = good.clone();
            long[word..word + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            damaged.push(long);
        }
        for notes in damaged {
            let refused = sites_of(&notes, "p", ["a", "a"]);
            assert!(matches!(refused, Err(SiteProblem::DamagedNotes)), "{notes:x?}: {refused:?}");
        }
    }

    #[test]
    fn notes_of_other_owners_are_no_probes() {
        let mut other = note([0x1000, 0, 0], b"p\0a\0\0");
        other[12..19].copy_from_slice(b"another");
        assert!(matches!(sites_of(&other, "p", ["a", "a"]), Err(SiteProblem::NoUsdtProbes)));
    }

    proptest! {
        #[test]
        fn any_damage_is_harmless(damage in proptest::collection::vec((0usize..100, any::<u8>()), 1..8)) {
            let mut notes = [note([0x1000, 0, 0x2000], b"p\0a\0\0"), note([0x1010, 8, 0], b"p\0b\0\0")].concat();
            for (at, value) in damage {
                if let Some(byte) = notes.get_mut(at) {
                    *byte = value;
                }
            }
            let _ = sites_of(&notes, "p", ["a", "b"]);
        }
    }
}
