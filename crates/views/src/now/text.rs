// SPDX-License-Identifier: Apache-2.0
//! All threads for people: groups of equal stacks, the largest first.

use std::collections::BTreeMap;
use std::io::{self, Write};

use wallprof_analysis::now::{Group, circles, groups};
use wallprof_model::profile::{LockRecord, ResolvedStack};
use wallprof_model::{Activity, Since, ThreadNow};

use super::{doing, duration, ink};
use crate::line::{Word, write_wrapped};
use crate::style::{Ink, Style};
use crate::text::{named, write_stack, write_title};
use crate::units::{count, counted, time};

const LABEL_COLUMNS: usize = 16;
const STACK_INDENT: usize = 6;
/// Threads and locks named of a group.
const MOST_NAMED: usize = 4;

/// Writes the groups of the threads for which `is_shown`, and a warning if threads wait for each other in
/// circles. Holders of locks can be among the others.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn threads_text(
    out: &mut impl Write,
    threads: &[ThreadNow],
    is_shown: &dyn Fn(&ThreadNow) -> bool,
    style: &Style,
) -> io::Result<()> {
    let shown: Vec<&ThreadNow> = threads.iter().filter(|thread| is_shown(thread)).collect();
    let groups = groups(shown.iter().copied());
    let about = format!(
        "{} in {} of equal stacks",
        counted(shown.len() as u64, "thread", "threads"),
        counted(groups.len() as u64, "group", "groups")
    );
    write_title(out, "All threads now", &about, style)?;
    for (number, group) in (1..).zip(&groups) {
        writeln!(out)?;
        write_head(out, number, group, style)?;
        write_facts(out, group, threads, style)?;
        let first = group.threads[0];
        write_stacks(out, first, style)?;
    }
    write_circles(out, threads, style)?;
    let moved = shown.iter().filter(|thread| thread.moved).count() as u64;
    if moved > 0 {
        let moved = counted(moved, "thread has", "threads have");
        let text = format!("{moved} no stack: they ran during each of three walks");
        writeln!(out)?;
        write_wrapped(out, ("", 0), &words(&text, Ink::Faint), style)?;
    }
    Ok(())
}

fn write_head(out: &mut impl Write, number: usize, group: &Group<'_>, style: &Style) -> io::Result<()> {
    let first = group.threads[0];
    let mut head = vec![Word::strong(format!("{number}."))];
    if group.threads.len() > 1 {
        head.push(Word::strong(format!("{} threads,", count(group.threads.len() as u64))));
    } else {
        head.push(Word::strong(format!("{},", whose(first, style))));
    }
    let lasts = lasts(group, style);
    let comma = if lasts.is_some() { "," } else { "" };
    head.push(Word { text: format!("{}{comma}", doing(first, style)), ink: ink(first) });
    head.extend(lasts.map(|text| Word { text, ink: ink(first) }));
    write_wrapped(out, ("", 0), &head, style)
}

/// `worker 4242 of server`; the process only where it has another name.
fn whose(thread: &ThreadNow, style: &Style) -> String {
    let name = named(&thread.comm, thread.tid, style);
    match thread.process == thread.comm || thread.kernel_thread {
        true => name,
        false => format!("{name} of {}", style.comm(&thread.process)),
    }
}

/// `for 3.21 s`; of several `for 1.20 s to 3.21 s`.
fn lasts(group: &Group<'_>, style: &Style) -> Option<String> {
    let longest = group.threads[0].since;
    let shortest = group.threads.iter().map(|thread| thread.since.least_ns()).min().unwrap_or(0);
    let all_known = group.threads.iter().all(|thread| matches!(thread.since, Since::For(_)));
    let (from, to) = (time(shortest, style), time(longest.least_ns(), style));
    match all_known && from != to {
        true => Some(format!("for {from} to {to}")),
        false => duration(longest, style),
    }
}

fn write_facts(
    out: &mut impl Write,
    group: &Group<'_>,
    threads: &[ThreadNow],
    style: &Style,
) -> io::Result<()> {
    let first = group.threads[0];
    if group.threads.len() > 1 {
        let names: Vec<String> = group.threads.iter().map(|thread| whose(thread, style)).collect();
        write_fact(out, "threads", &listed(&names), style)?;
    }
    if let Some(syscall) = &first.syscall {
        write_fact(out, "system call", &style.name(syscall), style)?;
    }
    let mut locks: BTreeMap<(u32, u64, Option<u32>), (&LockRecord, u64)> = BTreeMap::new();
    for thread in &group.threads {
        if let Some(lock) = &thread.lock {
            let pid = if lock.address == 0 { 0 } else { thread.pid };
            let owner = lock.owner.as_ref().map(|owner| owner.tid);
            locks.entry((pid, lock.address, owner)).or_insert((lock, 0)).1 += 1;
        }
    }
    let mut locks: Vec<_> = locks.into_values().collect();
    locks.sort_by_key(|(_, waiters)| std::cmp::Reverse(*waiters));
    for (lock, waiters) in locks.iter().take(MOST_NAMED) {
        let owner = lock.owner.as_ref();
        let holder = owner.and_then(|owner| threads.iter().find(|thread| thread.tid == owner.tid));
        write_fact(out, "lock", &lock_text(lock, holder, *waiters, style), style)?;
        if let Some(stack) = holder.and_then(|holder| holder.user.as_ref()) {
            write_stack_with_title(out, stack, "the holder's user stack", style)?;
        }
        let kernel = holder.filter(|_| lock.address == 0).and_then(|holder| holder.kernel.as_ref());
        if let Some(stack) = kernel {
            write_stack_with_title(out, stack, "the holder's kernel stack", style)?;
        }
    }
    if locks.len() > MOST_NAMED {
        let others = counted((locks.len() - MOST_NAMED) as u64, "other lock", "other locks");
        write_fact(out, "", &format!("and {others}: --json has all"), style)?;
    }
    Ok(())
}

/// `0x7f00, held by keeper 10, which is blocked: disk (2 threads wait)`.
fn lock_text(lock: &LockRecord, holder: Option<&ThreadNow>, waiters: u64, style: &Style) -> String {
    let which = match lock.address {
        0 => "a lock of the kernel".into(),
        address => format!("{address:#x}"),
    };
    let held = match (holder, &lock.owner) {
        (Some(holder), _) => {
            let state = match holder.activity {
                Activity::Blocked(_) => format!("blocked: {}", doing(holder, style)),
                other => other.name().to_owned(),
            };
            let name = match lock.address {
                0 => whose(holder, style),
                _ => named(&holder.comm, holder.tid, style),
            };
            format!("held by {name}, which is {state}")
        }
        (None, Some(owner)) => {
            format!("held by {}, which was not looked at", named(&owner.comm, owner.tid, style))
        }
        (None, None) => "whose holder is not known".into(),
    };
    format!("{which}, {held} ({})", counted(waiters, "thread waits", "threads wait"))
}

fn write_stacks(out: &mut impl Write, thread: &ThreadNow, style: &Style) -> io::Result<()> {
    if thread.moved {
        return Ok(());
    }
    if thread.activity == Activity::Running && thread.user.is_none() && thread.kernel.is_none() {
        return write_fact(out, "", "no stack: no clock sample met it within 10 ms", style);
    }
    for (stack, title) in [(&thread.user, "user stack"), (&thread.kernel, "kernel stack")] {
        if let Some(stack) = stack.as_ref().filter(|stack| !stack.frames.is_empty()) {
            write_stack_with_title(out, stack, title, style)?;
        }
    }
    Ok(())
}

fn write_stack_with_title(
    out: &mut impl Write,
    stack: &ResolvedStack,
    title: &str,
    style: &Style,
) -> io::Result<()> {
    writeln!(out, "    {}", style.paint(Ink::Faint, title))?;
    write_stack(out, stack, STACK_INDENT, style)
}

fn write_circles(out: &mut impl Write, threads: &[ThreadNow], style: &Style) -> io::Result<()> {
    for circle in circles(threads).iter().take(MOST_NAMED) {
        let names: Vec<String> = circle.iter().map(|thread| named(&thread.comm, thread.tid, style)).collect();
        let text = match &names[..] {
            [alone] => format!("deadlock: {alone} waits for a lock that it holds itself"),
            _ => {
                format!("deadlock: {} wait for each other in a circle: --waits-for shows it", listed(&names))
            }
        };
        writeln!(out)?;
        write_wrapped(out, ("", 0), &words(&text, Ink::Warning), style)?;
    }
    Ok(())
}

fn write_fact(out: &mut impl Write, label: &str, text: &str, style: &Style) -> io::Result<()> {
    let columns = if label.is_empty() { 2 } else { LABEL_COLUMNS };
    write_wrapped(out, (&format!("  {label}"), columns), &words(text, Ink::Plain), style)
}

/// `worker 1, worker 2 and 7 others`.
fn listed(names: &[String]) -> String {
    let shown = if names.len() > MOST_NAMED + 1 { &names[..MOST_NAMED] } else { names };
    match (names.len() - shown.len(), shown) {
        (0, [first @ .., last]) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        (0, _) => shown.join(", "),
        (others, _) => format!("{} and {} others", shown.join(", "), count(others as u64)),
    }
}

fn words(text: &str, ink: Ink) -> Vec<Word> {
    text.split(' ').map(|text| Word { text: text.into(), ink }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    fn text(threads: &[ThreadNow]) -> String {
        let mut out = Vec::new();
        threads_text(&mut out, threads, &|_| true, &Style::plain()).expect("memory is writable");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn waiters_are_one_group_with_the_holder_and_its_stack() {
        let text = text(&fixture::threads());
        let first = text.split("\n\n").nth(1).expect("a group");
        assert!(first.starts_with("1. 2 threads, lock, for 2.00 ms to 2.50 ms\n"), "{text}");
        assert!(first.contains("worker 12 of server and worker 11 of server"), "{text}");
        assert!(
            first.contains("0x7f00, held by keeper 10, which is blocked: disk (2 threads wait)"),
            "{text}"
        );
        assert!(first.contains("sweep_registry") && first.contains("take_order"), "{text}");
        assert!(text.contains("keeper 10 of server, disk, for at least 3.00 ms"), "{text}");
        assert!(text.contains("no clock sample met it"), "{text}");
        assert!(!text.contains("deadlock"), "{text}");
    }

    #[test]
    fn holder_of_a_lock_of_the_kernel_is_named_with_its_process() {
        let mut threads = fixture::threads();
        for thread in &mut threads {
            thread.lock.iter_mut().for_each(|lock| lock.address = 0);
        }
        let found = text(&threads);
        assert!(
            found.contains("a lock of the kernel, held by keeper 10 of server, which is blocked: disk"),
            "{found}"
        );
        threads.retain(|thread| thread.comm != "keeper");
        let found = text(&threads);
        assert!(
            found.contains("a lock of the kernel, held by keeper 10, which was not looked at"),
            "{found}"
        );
    }

    #[test]
    fn circle_is_a_deadlock() {
        let found = text(&fixture::circle());
        assert!(found.contains("deadlock: ring-1 1, ring-2 2 and ring-3 3 wait for each other"), "{found}");
        let mut alone = fixture::circle();
        alone.truncate(1);
        alone[0].lock.as_mut().and_then(|lock| lock.owner.as_mut()).expect("an owner").tid = 1;
        let found = text(&alone);
        assert!(found.contains("deadlock: ring-1 1 waits for a lock that it holds itself"), "{found}");
    }

    #[test]
    fn thread_that_moved_has_no_stack_and_is_counted() {
        let mut threads = fixture::threads();
        threads[0].moved = true;
        assert!(text(&threads).contains("1 thread has no stack: they ran"), "{}", text(&threads));
    }
}
