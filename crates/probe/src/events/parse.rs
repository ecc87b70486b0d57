// SPDX-License-Identifier: Apache-2.0
//! perf's event syntax, from the text of `-e` to a [`PerfEventSpec`].

use super::cache::{cache_event, cache_names};
use super::error::EventError;
use super::nearest::nearest;
use super::source::{EventSources, has_hardware_counters};
use super::spec::{PerfEventSpec, Sampling, event_type};
use super::{generic, pmu, tracepoint};

/// Reads one event: a name, `group:name`, `pmu/term=value,…/` or `rHEX`, each with optional modifiers
/// (`:u`, `:k`, `:p` to `:ppp`; after a closing slash without the colon).
pub fn parse_event(text: &str, sources: &EventSources) -> Result<PerfEventSpec, EventError> {
    if text.contains('/') {
        return slashed(text, sources);
    }
    match text.split(':').collect::<Vec<_>>()[..] {
        [name] => named(name, sources),
        [name, rest] => match named(name, sources) {
            Ok(known) => modified(known, rest, text),
            // A name before a colon that is no event is the group of a tracepoint.
            Err(unknown @ (EventError::Unknown { .. } | EventError::Malformed { .. })) => {
                let tracepoint = tracepoint::tracepoint(name, rest, sources);
                tracepoint.map_err(|error| if is_modifiers(rest) { unknown } else { error })
            }
            Err(error) => Err(error),
        },
        [group, name, modifiers] => modified(tracepoint::tracepoint(group, name, sources)?, modifiers, text),
        _ => Err(EventError::Malformed { event: text.to_string() }),
    }
}

/// Divides a list at its commas, except those between slashes.
pub fn split_list(text: &str) -> Vec<&str> {
    let mut inside = false;
    let outside_comma = |c: char| {
        inside ^= c == '/';
        c == ',' && !inside
    };
    text.split(outside_comma).map(str::trim).collect()
}

fn slashed(text: &str, sources: &EventSources) -> Result<PerfEventSpec, EventError> {
    match text.split('/').collect::<Vec<_>>()[..] {
        [pmu, terms, modifiers] => {
            let spec = pmu::pmu_event(text, pmu, terms, sources)?;
            modified(spec, modifiers.strip_prefix(':').unwrap_or(modifiers), text)
        }
        _ => Err(EventError::Malformed { event: text.to_string() }),
    }
}

fn named(name: &str, sources: &EventSources) -> Result<PerfEventSpec, EventError> {
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(EventError::Malformed { event: name.to_string() });
    }
    if let Some(spec) = generic::software(name) {
        return Ok(spec);
    }
    if let Some(spec) = generic::hardware(name).or_else(|| cache_event(name)).or_else(|| raw(name)) {
        return match has_hardware_counters(sources.files) {
            true => Ok(spec),
            false => Err(EventError::NoHardwareCounters { event: name.to_string() }),
        };
    }
    pmu::named_event(name, sources).ok_or_else(|| unknown(name, sources))
}

/// `rHEX`: the hardware's own code.
fn raw(name: &str) -> Option<PerfEventSpec> {
    let digits = name.strip_prefix('r')?;
    let all_hex = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
    let config = u64::from_str_radix(digits, 16).ok().filter(|_| all_hex)?;
    Some(PerfEventSpec::new(name, event_type::RAW, config, Sampling::Frequency))
}

fn unknown(name: &str, sources: &EventSources) -> EventError {
    let mut near = tracepoint::in_any_group(name, sources);
    if near.is_empty() {
        let software_only = !has_hardware_counters(sources.files);
        let offered = |known: &String| !software_only || generic::software(known).is_some();
        let names = generic::all_names().map(String::from).chain(cache_names()).filter(offered);
        near = nearest(name, names);
    }
    EventError::Unknown { event: name.to_string(), near }
}

fn is_modifiers(text: &str) -> bool {
    text.chars().all(|c| "ukp".contains(c))
}

fn modified(mut spec: PerfEventSpec, modifiers: &str, text: &str) -> Result<PerfEventSpec, EventError> {
    let (mut user, mut kernel) = (false, false);
    for modifier in modifiers.chars() {
        match modifier {
            'u' => user = true,
            'k' => kernel = true,
            'p' if spec.precise < 3 => spec.precise += 1,
            modifier => return Err(EventError::BadModifier { event: text.to_string(), modifier }),
        }
    }
    if spec.precise > 0 && matches!(spec.event_type, event_type::SOFTWARE | event_type::TRACEPOINT) {
        return Err(EventError::NotPrecise { event: text.to_string() });
    }
    // Both mean everywhere, as none does.
    spec.exclude_user = kernel && !user;
    spec.exclude_kernel = user && !kernel;
    if !modifiers.is_empty() && !spec.name.contains('/') {
        spec.name = format!("{}:{modifiers}", spec.name);
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::facts::files::fake::FakeFiles;

    fn virtual_machine() -> FakeFiles {
        FakeFiles::new(&[
            ("/sys/bus/event_source/devices/msr/type", "9"),
            ("/t/events/sched/sched_switch/id", "316"),
            ("/t/events/u/k/id", "7"),
        ])
    }

    fn bare_metal() -> FakeFiles {
        virtual_machine()
            .with("/sys/bus/event_source/devices/cpu/type", "4")
            .with("/sys/bus/event_source/devices/cpu/format/event", "config:0-7")
    }

    fn parse_on(files: &FakeFiles, text: &str) -> Result<PerfEventSpec, EventError> {
        parse_event(text, &EventSources { files, tracefs: Some(Path::new("/t")) })
    }

    fn parse(text: &str) -> PerfEventSpec {
        parse_on(&bare_metal(), text).unwrap()
    }

    #[test]
    fn each_kind_of_event() {
        let kind = |text| (parse(text).event_type, parse(text).config);
        assert_eq!(kind("cycles"), (0, 0));
        assert_eq!(kind("LLC-load-misses"), (3, 2 | 1 << 16));
        assert_eq!(kind("cs"), (1, 3));
        assert_eq!(kind("r1a8"), (4, 0x1a8));
        assert_eq!(kind("sched:sched_switch"), (2, 316));
        assert_eq!(kind("cpu/event=0x3c/"), (4, 0x3c));
        assert_eq!(kind("cpu//"), (4, 0));
    }

    #[test]
    fn modifiers() {
        let sides = |text| (parse(text).exclude_user, parse(text).exclude_kernel, parse(text).precise);
        assert_eq!(sides("cycles"), (false, false, 0));
        assert_eq!(sides("cycles:u"), (false, true, 0));
        assert_eq!(sides("cycles:k"), (true, false, 0));
        assert_eq!(sides("cycles:ukpp"), (false, false, 2));
        assert_eq!(sides("cpu/event=1/upp"), (false, true, 2));
        assert_eq!(sides("cpu/event=1/:k"), (true, false, 0));
        assert_eq!(sides("sched:sched_switch:u"), (false, true, 0));
        assert_eq!(parse("cycles:ppp").name, "cycles:ppp");
        assert_eq!(parse("cpu/event=1/u").name, "cpu/event=1/u");
        assert_eq!(parse("u:k").config, 7, "a group may be called like a modifier");
    }

    #[test]
    fn wrong_modifiers() {
        let error = |text| parse_on(&bare_metal(), text).unwrap_err();
        assert!(matches!(error("cycles:x"), EventError::BadModifier { modifier: 'x', .. }));
        assert!(matches!(error("cycles:pppp"), EventError::BadModifier { modifier: 'p', .. }));
        assert!(matches!(error("page-faults:p"), EventError::NotPrecise { .. }));
        assert!(matches!(error("sched:sched_switch:p"), EventError::NotPrecise { .. }));
    }

    #[test]
    fn without_a_pmu_hardware_events_say_so() {
        for text in ["cycles", "LLC-loads", "r1a8", "cycles:u"] {
            let error = parse_on(&virtual_machine(), text).unwrap_err();
            assert!(matches!(error, EventError::NoHardwareCounters { .. }), "{text}: {error:?}");
        }
        assert!(parse_on(&virtual_machine(), "page-faults:u").is_ok());
    }

    #[test]
    fn unknown_names_suggest_what_this_machine_has() {
        let near = |files: &FakeFiles, text| match parse_on(files, text) {
            Err(EventError::Unknown { near, .. }) => near,
            other => panic!("{other:?}"),
        };
        assert_eq!(near(&bare_metal(), "cylces")[0], "cycles");
        assert!(near(&virtual_machine(), "cylces").is_empty());
        assert_eq!(near(&virtual_machine(), "page-fault"), ["page-faults"]);
        assert_eq!(near(&virtual_machine(), "sched_switch"), ["sched:sched_switch"]);
        assert_eq!(near(&bare_metal(), "cylces:u")[0], "cycles");
    }

    #[test]
    fn malformed_texts() {
        for text in [
            "",
            ":",
            "::",
            "a:b:c:d",
            "/",
            "cpu/event=1",
            "a/b/c/d",
            "a b",
            "\u{1b}[31m",
            "../x:y",
            "cycles:",
        ] {
            let parsed = parse_on(&bare_metal(), text);
            match text {
                "cycles:" => assert_eq!(parsed.unwrap().name, "cycles"),
                _ => assert!(
                    matches!(parsed, Err(EventError::Malformed { .. } | EventError::Unknown { .. })),
                    "{text}"
                ),
            }
        }
        assert!(parse_on(&bare_metal(), &"r".repeat(1 << 16)).is_err());
        assert!(parse_on(&bare_metal(), "r+1").is_err());
        assert!(parse_on(&bare_metal(), "r11111111111111111").is_err());
    }

    #[test]
    fn lists_divide_outside_slashes() {
        assert_eq!(split_list("cs, cpu/event=1,umask=2/u,faults"), ["cs", "cpu/event=1,umask=2/u", "faults"]);
        assert_eq!(split_list("cs"), ["cs"]);
        assert_eq!(split_list("a,,b"), ["a", "", "b"]);
    }
}
