// SPDX-License-Identifier: Apache-2.0
//! `lock-wait`: threads wait for a lock. Reports which threads waited and where, which thread held the lock,
//! what that thread waited for itself, and where it released the lock.
//!
//! One finding a lock. Where its address is not known, one a waiting function. Locks of several processes of
//! one program that are waited for at one place are one finding.
//!
//! False positives: a lock that is meant to be waited for (a turnstile built from a mutex). Other load may
//! have kept the holder from running: then that load is the cause, and the title names it.

use std::sync::Arc;

use wallprof_meaning::site::Site;

use super::case::{Case, across_processes, by_function, grouped, mostly};
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::relay::Relay;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{lock, network_wait, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "lock-wait",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

/// JEP 491 lets a thread in `synchronized` leave its carrier from Java 24 on.
const PINNED_ADVICE: &str = "Take a ReentrantLock in place of `synchronized` around calls that wait, or run Java 24, \
    so that the thread leaves its carrier to others.";

/// The causes that RocksDB writes into its LOG (`Stalling writes because`), and LevelDB has, too.
const WRITE_STALL_ADVICE: &str = "The database lets writers wait until its flushes and compactions have caught up; RocksDB's \
    LOG says which (`Stalling writes because`). More background jobs, larger write buffers, higher limits for files of \
    level 0, a faster disk, or fewer writes at a time.";

pub(super) const SPACE_ADVICE: &str = "Let the readers take what they read faster, or let there be more of them. More space helps \
    where they are slow for moments only.";

const POOL_ADVICE: &str = "Give what the pool lends back sooner: wait for nothing else while a thread has it. A larger \
    pool helps where what is behind it, such as a database, has room for more at a time.";

const ROLLBACK_ADVICE: &str = "PostgreSQL ends a deadlock after deadlock_timeout, with an error in one of its transactions; \
    lock_timeout and statement_timeout end waits, too. The server's log says which of them it was. Against deadlocks change \
    rows in the same order in all transactions.";

const RESULT_ADVICE: &str = "Look at what the threads that end the waits do meanwhile, and make that faster. Where all threads \
    of an executor are busy, the task waits for one: give it more of them, or less to do. Or do other work until the result \
    is there.";

/// The meaning of a backend's wait for a client that reads slowly. The backend polls two things besides.
const SEND_BUFFER: &str = "space in the send buffer";

/// Which lock: the one of its process; its address in a process; what it is called, where the threads of a program
/// say so by their wakeups, and then the function that waits; else where it is waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LockKey {
    OfProcess(u32, String),
    At(u32, u64),
    Of(Arc<str>, String),
    In(u32, Option<Arc<Site>>),
}

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    by_lock(evidence, reported, |cases| conclude(cases, evidence))
}

/// What `conclude` says of the waits that are left, for each lock. Those of several processes of one program at
/// one place are together, where each is a problem.
pub(super) fn by_lock<'e>(
    evidence: &'e Evidence,
    reported: &Reported,
    conclude: impl Fn(Vec<&'e Case>) -> Option<Conclusion<'e>>,
) -> Vec<Conclusion<'e>> {
    let waits = lock::waits(evidence, reported).filter(|case| !case.in_allocator);
    let locks = grouped(waits, |case| lock_key(case, evidence));
    let place = |cases: &[&Case]| (evidence.program(cases[0]), mostly(cases, |case| case.site.clone()));
    let divided = |(key, cases): (LockKey, Vec<&'e Case>)| match key {
        LockKey::Of(..) => by_function(cases),
        _ => vec![cases],
    };
    let locks = locks.into_iter().flat_map(divided);
    let locks = across_processes(locks, place, |cases| conclude(cases.to_vec()).is_some());
    locks.into_iter().filter_map(conclude).collect()
}

fn lock_key(case: &Case, evidence: &Evidence) -> LockKey {
    if let Some(name) = lock::of_process(case) {
        return LockKey::OfProcess(case.pid, name.to_owned());
    }
    let address = case.lock.as_ref().map(|lock| lock.address).filter(|&address| address != 0);
    match (address, &case.meaning) {
        (Some(address), _) => LockKey::At(case.pid, address),
        (None, Some(meaning)) => LockKey::Of(evidence.program(case), meaning.name.clone()),
        (None, None) => LockKey::In(case.pid, case.site.clone()),
    }
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let what = lock::what(&cases);
    lock::conclude(cases, evidence, &what, |cases, is_rolled_back| advice(cases, evidence, is_rolled_back))
}

fn advice(cases: &[&Case], evidence: &Evidence, is_rolled_back: bool) -> String {
    if lock::is_for_space(cases) {
        return SPACE_ADVICE.to_owned();
    }
    if lock::is_for_results(cases) {
        return Relay::of(cases, evidence).map_or_else(|| RESULT_ADVICE.to_owned(), |relay| relay.advice());
    }
    if lock::is_pooled(cases) {
        return POOL_ADVICE.to_owned();
    }
    let meaning = mostly(cases, |case| case.meaning.clone());
    if let Some(meaning) = meaning.filter(|meaning| !meaning.holder) {
        return advice_about(&meaning.name).map_or_else(
            || format!("Make the {} faster, or do not wait for it on this path.", meaning.name),
            ToOwned::to_owned,
        );
    }
    if is_rolled_back {
        return ROLLBACK_ADVICE.to_owned();
    }
    let meaning = mostly(cases, |case| Some(case.meaning.as_ref()?.name.clone()));
    if let Some(advice) = meaning.as_deref().and_then(advice_about) {
        return advice.to_owned();
    }
    let holder = match wording::spot(lock::release(cases, evidence).as_ref()).as_str() {
        "" => "Hold the lock for less time".to_owned(),
        spot => format!("Hold the lock for less time where it is released{spot}"),
    };
    format!(
        "{holder}: move what is slow out of it, split it, or keep the path that must not wait away from it."
    )
}

/// What helps with waits that are no mutex's.
fn advice_about(meaning: &str) -> Option<&'static str> {
    Some(match meaning {
        "pinned virtual thread" => PINNED_ADVICE,
        "write stall" => WRITE_STALL_ADVICE,
        "write group" => {
            "One thread writes the data of all that wait: put more into each batch, let a batch not wait for the disk where \
             that is safe (WriteOptions::sync), or place the log on a faster one."
        }
        SEND_BUFFER => network_wait::ADVICE_ON_SPACE,
        "GIL" | "GVL" => {
            "One thread at a time runs the interpreter's code: move what computes to another process, or to native code \
             that gives the lock away meanwhile."
        }
        "garbage collection" => {
            "Allocate less on busy paths, give the heap more memory, or use a collector that pauses for less time."
        }
        "safepoint" | "VM operation" => {
            "All threads wait while the virtual machine stops them: look at what asks for the stops (-Xlog:safepoint), \
             such as collections, and at threads that are late to stop."
        }
        "one-time initialization" | "static initialization" => {
            "All threads that come later wait for the first one: initialize before they start, or make what the \
             initialization does faster."
        }
        "import lock" => {
            "Import modules before the threads start, or where no request waits: all threads that come later wait for the \
             first one, which runs the module's code."
        }
        "polled lock" => {
            "Take a lock whose waiters sleep until it is free, such as a mutex: here they sleep on after that, and nothing says \
             who had it. Or hold it for less time."
        }
        "user lock" => {
            "Release the lock sooner (RELEASE_LOCK): let the session wait for nothing while it has it. A commit does not \
             release it."
        }
        "advisory lock" => {
            "Release the lock sooner: let the session wait for nothing while it has it. A commit releases a lock of the \
             transaction (pg_advisory_xact_lock); a lock of the session stays until pg_advisory_unlock."
        }
        "row lock" | "unique key" | "transaction lock" => {
            "Commit sooner after the change: let a transaction wait for nothing while it has the lock, take such locks late \
             in it, and change one row from fewer places at a time."
        }
        "table lock" | "metadata lock" | "relation extension lock" | "heavyweight lock" => {
            "End transactions that use the table sooner, and change its definition while none is open, or with a short \
             timeout for the lock."
        }
        "database lock" => {
            "Keep transactions that write short, and use write-ahead logging (PRAGMA journal_mode=WAL), with which readers \
             do not wait for them."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, WALL_NS, at, case, lock_case, stack, thread_ref, untracked};
    use super::*;
    use wallprof_model::profile::{LockRecord, StallRecord, WakerRecord};
    use wallprof_model::{Meaning, MeaningSource, MonoNs, Reason, StallReason, ThreadKey, ThreadRef};

    #[test]
    fn waiter_holder_and_release_are_named() {
        let found = Fixture::only_finding((1..=7).map(|id| lock_case(id, 1, 2, 870_000)));
        assert_eq!(
            found.title,
            "thread-1 of app waited for a lock in take_order (called by handle_tick) 7 times, 6.09 ms in all, \
             up to 870 µs: thread-2 held it and released it in release_order."
        );
        assert!(found.advice.contains("in release_order"), "{}", found.advice);
        assert_eq!((found.rule.as_str(), found.count, found.max_ns), (RULE.name, 7, 870_000));
        assert_eq!(found.threads, [ThreadKey(1)]);
        assert_eq!(found.stalls, (1..=7).collect::<Vec<_>>());
    }

    #[test]
    fn function_in_which_the_holder_ran_and_let_go_is_named() {
        let sampled = |id| {
            let wait = lock_case(id, 1, 2, 2_000_000);
            let release = stack(&["unlock", "sweep_registry", "run"]);
            let waker = wait.waker.clone().map(|waker| WakerRecord { user: Some(release), ..waker });
            let owner_sample = Some((wait.start, stack(&["spin", "sweep_registry", "run"])));
            StallRecord { waker, owner_sample, ..wait }
        };
        let found = Fixture::only_finding((1..=3).map(sampled));
        let expected = ": thread-2 held it in sweep_registry and released it in unlock.";
        assert!(found.title.ends_with(expected), "{}", found.title);
    }

    /// Two waiters stand behind a slow holder: it wakes the first one, which wakes the second one on its way out.
    fn handed_on(owner_word: bool) -> Vec<StallRecord> {
        let lock = |wait: StallRecord| match owner_word {
            true => lock_case(wait.id, 1, 2, 0).lock,
            false => None,
        };
        let of_holder = at(0, StallRecord { thread: ThreadKey(3), ..learned(1, 1, 2, 10_000_000) });
        let of_waiter = at(0, learned(2, 1, 3, 10_300_000));
        let leaves =
            of_waiter.waker.clone().map(|waker| WakerRecord { user: Some(stack(&["leave"])), ..waker });
        let of_waiter = StallRecord { waker: leaves, ..of_waiter };
        [of_waiter, of_holder]
            .into_iter()
            .map(|wait| StallRecord { lock: lock(wait.clone()), ..wait })
            .collect()
    }

    #[test]
    fn place_is_where_the_named_holder_let_go_not_where_the_next_one_did() {
        for owner_word in [true, false] {
            let found = Fixture::only_finding(handed_on(owner_word));
            assert!(found.title.contains(": thread-2 held it"), "{}", found.title);
            assert!(found.title.ends_with(" released it in release_order."), "{}", found.title);
            assert!(found.advice.contains("released in release_order"), "{}", found.advice);
        }
    }

    #[test]
    fn owner_that_slept_is_reported() {
        let wait = at(0, lock_case(1, 1, 2, 4_000_000));
        let sleep = at(1_000_000, case(2, 2, StallReason::Blocked(Reason::Sleep), 2_000_000));
        let found = Fixture::only_finding([wait, sleep]);
        let expected =
            "thread-2 held it, itself off the CPU for 50 % of that time (sleep in work), and released it";
        assert!(found.title.contains(expected), "{}", found.title);
        assert_eq!(found.stalls, [1]);
    }

    #[test]
    fn without_an_owner_the_waker_is_named() {
        let ownerless = |id| StallRecord { lock: None, ..lock_case(id, 1, 2, 2_000_000) };
        let found = Fixture::only_finding((1..=3).map(ownerless));
        assert!(
            found.title.ends_with("up to 2.00 ms: thread-2 released it in release_order."),
            "{}",
            found.title
        );
    }

    #[test]
    fn a_wait_that_timed_out_was_not_released() {
        let timed_out = |id| {
            let wait = lock_case(id, 1, 2, 2_000_000);
            let waker = wait.waker.clone().map(|waker| WakerRecord { thread: None, ..waker });
            StallRecord { waker, ..wait }
        };
        let found = Fixture::only_finding((1..=3).map(timed_out));
        assert!(found.title.ends_with("thread-2 held it until the waits timed out."), "{}", found.title);
        assert!(!found.advice.contains("released"), "{}", found.advice);
    }

    #[test]
    fn holder_of_what_the_waiter_asked_for_again_and_again_is_named() {
        let polled = |id| {
            let wait = lock_case(id, 1, 2, 20_000_000);
            let waker = wait.waker.clone().map(|waker| WakerRecord { thread: None, ..waker });
            StallRecord {
                waker,
                reason: StallReason::Blocked(Reason::Sleep),
                ..said_of(wait, "database lock")
            }
        };
        let found = Fixture::only_finding((1..=3).map(polled));
        assert!(found.title.ends_with("up to 20.0 ms: thread-2 held it."), "{}", found.title);
    }

    /// A wait that a rule gives a name.
    fn said(id: u64, name: &str, holder: bool, ns: u64) -> StallRecord {
        let meaning = Meaning { holder, ..meaning(name) };
        StallRecord { meaning: Some(Arc::new(meaning)), ..learned(id, 1, 2, ns) }
    }

    fn said_of(wait: StallRecord, name: &str) -> StallRecord {
        StallRecord { meaning: Some(Arc::new(meaning(name))), ..wait }
    }

    fn meaning(name: &str) -> Meaning {
        let (name, software) = (name.into(), Some("engine".into()));
        Meaning { name, software, idle: false, holder: true, source: MeaningSource::Stack }
    }

    #[test]
    fn named_waits_are_reported_where_they_are_a_part_of_the_time() {
        let few = (1..=10).map(|id| said(id, "row lock", true, 900_000));
        assert_eq!(Fixture::findings(few), []);
        let found = Fixture::only_finding([said(1, "row lock", true, 25_000_000)]);
        assert!(found.title.contains("waited for a row lock in take_order"), "{}", found.title);
        for (name, what) in
            [("advisory lock", "an advisory lock"), ("unique key", "a unique key"), ("GIL", "GIL")]
        {
            let found = Fixture::only_finding([said(1, name, true, 25_000_000)]);
            assert!(found.title.contains(&format!("waited for {what} in take_order")), "{}", found.title);
        }
    }

    #[test]
    fn waits_without_a_holder_have_an_advice_of_their_own() {
        let found = Fixture::only_finding([said(1, "pinned virtual thread", false, 25_000_000)]);
        assert!(found.title.contains("waited for a pinned virtual thread in"), "{}", found.title);
        assert!(found.advice.contains("ReentrantLock"), "{}", found.advice);
        let found = Fixture::only_finding([said(1, SEND_BUFFER, false, 25_000_000)]);
        assert!(found.title.contains("waited for space in the send buffer in"), "{}", found.title);
        assert!(found.advice.starts_with("The other end reads more slowly"), "{}", found.advice);
    }

    #[test]
    fn threads_that_come_later_wait_for_the_first_one_to_initialize() {
        let found = Fixture::only_finding([said(1, "one-time initialization", true, 25_000_000)]);
        assert!(found.title.contains("waited for one-time initialization in take_order"), "{}", found.title);
        assert!(found.advice.contains("initialize before they start"), "{}", found.advice);
    }

    #[test]
    fn stalled_writes_wait_for_the_database() {
        let found = Fixture::only_finding([said(1, "write stall", false, 25_000_000)]);
        assert!(found.title.contains("waited for a write stall in take_order"), "{}", found.title);
        assert!(found.advice.contains("compactions"), "{}", found.advice);
    }

    #[test]
    fn what_is_no_lock_is_not_held() {
        let found = Fixture::only_finding([said(1, "DNS", false, 25_000_000)]);
        assert!(
            found.title.ends_with("for DNS in take_order (called by handle_tick) for 25.0 ms: thread-2 ended it in release_order."),
            "{}",
            found.title
        );
        assert_eq!(found.advice, "Make the DNS faster, or do not wait for it on this path.");
    }

    #[test]
    fn space_is_not_held_but_made_by_a_reader() {
        let found = Fixture::only_finding([said(1, "full queue", false, 25_000_000)]);
        assert!(
            found.title.ends_with(
                "waited for space in a queue in take_order (called by handle_tick) for 25.0 ms: thread-2 ended it in \
                 release_order, while thread-2 was mostly running."
            ),
            "{}",
            found.title
        );
        assert!(found.advice.contains("readers"), "{}", found.advice);
    }

    #[test]
    fn pool_lends_one_of_several_things() {
        let found = Fixture::only_finding([said(1, "pooled connection", true, 25_000_000)]);
        assert!(
            found.title.ends_with(
                "waited for a pooled connection in take_order (called by handle_tick) for 25.0 ms: thread-2 had one and \
                 gave it back in release_order."
            ),
            "{}",
            found.title
        );
        assert!(found.advice.contains("back sooner"), "{}", found.advice);
    }

    /// A wait that its waker makes one for a lock.
    fn learned(id: u64, thread: u32, by: u32, ns: u64) -> StallRecord {
        let (name, source) = ("lock".into(), MeaningSource::Wakers);
        StallRecord {
            reason: StallReason::Blocked(Reason::Wait),
            lock: None,
            meaning: Some(Arc::new(Meaning { name, software: None, idle: false, holder: true, source })),
            ..lock_case(id, thread, by, ns)
        }
    }

    /// Pools of Java wait for the locks of their queues, too, at no place of the program.
    #[test]
    fn waits_at_no_place_of_the_program_are_with_those_of_threads_of_the_name() {
        let named = |id, thread, comm: &str, functions: &[&str]| {
            let user = Some(stack(functions));
            at(
                id * 100_000_000,
                StallRecord { comm: comm.into(), user, ..learned(id, thread, 3, 20_000_000) },
            )
        };
        let cut = ["java.util.concurrent.LinkedBlockingQueue.take"];
        let found = Fixture::findings([
            named(1, 1, "orders-1", &["Pools.changeTable", "Pools.run"]),
            named(2, 2, "orders-2", &cut),
            named(3, 4, "timers", &cut),
        ]);
        let of_orders = found.iter().find(|found| found.title.contains("Pools.changeTable"));
        let of_orders = of_orders.unwrap_or_else(|| panic!("{found:#?}"));
        assert_eq!(of_orders.threads, [1, 2].map(ThreadKey), "{found:#?}");
    }

    #[test]
    fn releaser_of_a_lock_without_an_owner_word_held_it() {
        let wait = at(0, learned(1, 1, 2, 4_000_000));
        let sleep = at(1_000_000, case(2, 2, StallReason::Blocked(Reason::Sleep), 3_000_000));
        let found = Fixture::only_finding([wait, StallRecord { voluntary: true, ..sleep }]);
        assert!(
            found.title.ends_with(
                "waited for a lock in take_order (called by handle_tick) for 4.00 ms: thread-2 held it, itself off the \
                 CPU for 75 % of that time (sleep in work), and released it in release_order."
            ),
            "{}",
            found.title
        );
    }

    /// Waits of 4 ms of these threads, and the threads that ended them.
    fn ended_by(waits: &[(u32, u32)]) -> String {
        let wait = |(id, &(thread, by)): (u64, &(u32, u32))| learned(id, thread, by, 4_000_000);
        Fixture::only_finding((1..).zip(waits).map(wait)).title
    }

    #[test]
    fn only_waiters_hold_it_in_turn() {
        let title = ended_by(&[(1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2)]);
        assert!(title.ends_with(": they held it in turn and released it in release_order."), "{title}");
        let title = ended_by(&[(1, 2), (1, 2), (1, 3), (1, 4), (1, 5)]);
        let expected =
            ": of several threads thread-2 held it longest, for 40 % of that time, and released it in";
        assert!(title.contains(expected), "{title}");
        let title = ended_by(&[(1, 2), (1, 2), (1, 2), (1, 4), (1, 5)]);
        assert!(title.ends_with(": thread-2 held it and released it in release_order."), "{title}");
    }

    #[test]
    fn two_that_hold_what_others_wait_for_too_are_named() {
        let title = ended_by(&[(3, 1), (4, 1), (5, 2), (6, 2), (1, 2), (2, 1)]);
        let expected = ": thread-1 and thread-2 held it and released it in release_order.";
        assert!(title.ends_with(expected), "{title}");
        let title = ended_by(&[(3, 1), (4, 1), (5, 2), (6, 2), (1, 6), (2, 5)]);
        assert!(title.ends_with(": they held it in turn and released it in release_order."), "{title}");
        let title = ended_by(&[(1, 2), (2, 1)]);
        assert!(title.ends_with(": they held it in turn and released it in release_order."), "{title}");
    }

    #[test]
    fn holder_with_the_name_of_the_waiter_has_its_number() {
        let named = |id, owner: u32| {
            let mut wait = StallRecord { comm: "worker".into(), ..lock_case(id, 1, owner, 4_000_000) };
            let lock = wait.lock.as_mut().and_then(|lock| lock.owner.as_mut());
            lock.expect("an owner").comm = "worker".into();
            wait
        };
        let title =
            |owners: [u32; 3]| Fixture::only_finding((1..).zip(owners).map(|(id, by)| named(id, by))).title;
        assert!(title([2, 2, 3]).contains(": worker 102 held it"), "{}", title([2, 2, 3]));
        assert!(title([2, 3, 4]).contains(": worker held it"), "each for a third: {}", title([2, 3, 4]));
    }

    #[test]
    fn advice_goes_by_what_the_wait_means() {
        let advice = |name| Fixture::only_finding([said(1, name, true, 25_000_000)]).advice;
        for (name, words) in [
            ("GIL", "another process"),
            ("garbage collection", "Allocate less"),
            ("row lock", "Commit sooner"),
            ("metadata lock", "End transactions"),
            ("user lock", "RELEASE_LOCK"),
            ("import lock", "before the threads start"),
            ("polled lock", "such as a mutex"),
            ("advisory lock", "pg_advisory_unlock"),
            ("database lock", "write-ahead"),
            ("safepoint", "-Xlog:safepoint"),
        ] {
            assert!(advice(name).contains(words), "{name}: {}", advice(name));
            assert!(!advice(name).contains("Hold the lock for less time"), "{name}: {}", advice(name));
        }
        assert!(
            advice("monitor")
                .starts_with("Hold the lock for less time where it is released in release_order")
        );
    }

    #[test]
    fn releaser_held_it_since_its_own_wait_for_it() {
        let title = |own_ns: u64| {
            let own = at(0, learned(1, 2, 3, own_ns));
            let wait = at(500_000, learned(2, 1, 2, 4_000_000));
            let sleep = at(3_000_000, case(3, 2, StallReason::Blocked(Reason::Sleep), 1_500_000));
            let found = Fixture::only_finding([own, wait, StallRecord { voluntary: true, ..sleep }]);
            found.title
        };
        let found = title(1_000_000);
        assert!(found.contains("held it, itself off the CPU for 30 % of that time"), "{found}");
        assert!(!found.contains("lock in take_order),"), "not its own wait: {found}");
        let found = title(3_000_000);
        assert!(
            found.ends_with(": thread-3 held it and released it in release_order."),
            "not thread-3 slept: {found}"
        );
    }

    /// A wait of 100 ms for the lock of an interpreter, in this function.
    fn interpreter(id: u64, thread: u32, by: u32, function: &str) -> StallRecord {
        let meaning = Meaning { software: Some("ruby".into()), ..meaning("GVL") };
        let wait = StallRecord { meaning: Some(Arc::new(meaning)), ..learned(id, thread, by, 100_000_000) };
        StallRecord { user: Some(stack(&["pthread_cond_wait", function])), ..wait }
    }

    #[test]
    fn thread_that_computes_held_the_lock_of_the_interpreter_for_the_whole_queue() {
        // Thread 9 gives it to thread 1, that one to 2, and that one to 3, within a millisecond.
        let turn = |round: u64| {
            let at_ms = |ms: u64, stall| at(round * 101_000_000 + ms * 100_000, stall);
            [
                at_ms(0, interpreter(round * 3 + 1, 1, 9, "nap")),
                at_ms(1, interpreter(round * 3 + 2, 2, 1, "nap")),
                at_ms(2, interpreter(round * 3 + 3, 3, 2, "take")),
            ]
        };
        let mut found = Fixture::findings((0..5).flat_map(turn));
        found.retain(|found| found.rule == RULE.name);
        let [found] = &found[..] else { panic!("one lock: {found:#?}") };
        assert!(found.title.contains("waited for GVL"), "{}", found.title);
        assert!(found.title.contains(": thread-9 held it"), "{}", found.title);
        assert_eq!(found.count, 15, "one lock, whatever the function");
    }

    /// Waits of thread 1 for the GVL, which end with their timeout, and one wait of thread 4 that thread 1 ends. Thread
    /// 4 ran for `ran_ns`, and thread 5, which never takes the lock, for longer.
    fn title_of_timed_out_waits(ran_ns: u64) -> String {
        let mut fixture = Fixture::new();
        fixture.threads.iter_mut().for_each(|thread| thread.ledger.on_cpu_ns = 0);
        fixture.threads[3].ledger.on_cpu_ns = ran_ns;
        fixture.threads[4].ledger.on_cpu_ns = WALL_NS / 100 * 95;
        for round in 1..=20 {
            let mut wait = interpreter(round, 1, 4, "take");
            if let Some(waker) = &mut wait.waker {
                waker.thread = None;
            }
            fixture.stall(at(round * 200_000_000, wait));
        }
        let own = interpreter(21, 4, 1, "take");
        fixture.stall(StallRecord { end: MonoNs(own.start.0 + 1_000_000), ..own });
        let mut found = super::super::findings(&fixture.evidence());
        found.retain(|found| found.rule == RULE.name);
        let [found] = &found[..] else { panic!("one lock: {found:#?}") };
        found.title.clone()
    }

    #[test]
    fn holder_of_few_of_the_waits_is_not_that_of_all() {
        let title = title_of_timed_out_waits(WALL_NS / 10 * 9);
        assert!(title.contains(": thread-4 held it, and ran for 90 % of the recording."), "{title}");
        let title = title_of_timed_out_waits(WALL_NS / 100);
        assert!(!title.contains("held it"), "{title}");
    }

    #[test]
    fn slices_of_a_wait_count_once() {
        let slice = |id| StallRecord {
            wait_id: Some(1),
            asked_ns: Some(1_000_000),
            ..at((id - 1) * 1_010_000, learned(id, 1, 2, 1_000_000))
        };
        let found = Fixture::only_finding((1..=5).map(slice));
        assert_eq!((found.count, found.max_ns, found.stalls), (1, 5_040_000, vec![1]));
    }

    #[test]
    fn idle_waits_are_no_finding() {
        let idle = |id| {
            let wait = learned(id, 1, 2, 5_000_000);
            let meaning = Meaning { idle: true, ..Meaning::clone(wait.meaning.as_ref().unwrap()) };
            StallRecord { meaning: Some(Arc::new(meaning)), voluntary: true, ..wait }
        };
        assert_eq!(Fixture::findings((1..=4).map(idle)), []);
    }

    #[test]
    fn each_lock_is_a_finding_of_its_own() {
        let other = |id| {
            let lock = lock_case(id, 1, 2, 2_000_000);
            StallRecord { lock: Some(LockRecord { address: 0x2000, owner: None }), ..lock }
        };
        let findings = Fixture::findings([lock_case(1, 1, 2, 3_000_000), other(2)]);
        assert_eq!(findings.iter().map(|found| found.stalls.clone()).collect::<Vec<_>>(), [[1], [2]]);
    }

    #[test]
    fn locks_of_processes_of_one_program_at_one_place_are_one_finding() {
        let of = |id: u64, pid: u32, function: &str| {
            let user = Some(stack(&["pthread_mutex_lock", function]));
            let thread = ThreadKey(pid - 99);
            StallRecord { pid, thread, user, comm: "app".into(), ..lock_case(id, 1, 9, 2_000_000) }
        };
        let found = Fixture::findings((1..=8).map(|id| of(id, 100 + (id % 4) as u32, "take_order")));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].title.starts_with("4 app processes waited for a lock in"), "{}", found[0].title);
        assert_eq!((found[0].count, found[0].threads.len()), (8, 4));
        let elsewhere = Fixture::findings([of(1, 100, "take_order"), of(2, 101, "settle")]);
        assert_eq!(elsewhere.len(), 2, "at two places");
        let rare = Fixture::findings([
            of(1, 100, "take_order"),
            StallRecord {
                end: MonoNs(of(2, 101, "take_order").start.0 + 200_000),
                ..of(2, 101, "take_order")
            },
        ]);
        assert_eq!((rare.len(), rare[0].count), (1, 1), "what is no finding alone is not added");
    }

    #[test]
    fn short_voluntary_and_negligible_waits_are_none() {
        assert_eq!(Fixture::findings((1..=4).map(|id| lock_case(id, 1, 2, 450_000))), []);
        let voluntary = |id| StallRecord { voluntary: true, ..lock_case(id, 1, 2, 5_000_000) };
        assert_eq!(Fixture::findings((1..=4).map(voluntary)), []);
        let disk = case(9, 1, StallReason::Blocked(Reason::Disk), 900_000_000);
        let findings = Fixture::findings([lock_case(1, 1, 2, 2_000_000), disk]);
        assert!(findings.iter().all(|found| found.rule != RULE.name), "{findings:#?}");
    }

    /// A wait of `thread` for a future, which a thread of an executor ends that sleeps meanwhile.
    fn result(id: u64, thread: u32, by: u32, ns: u64) -> [StallRecord; 2] {
        let (name, software, source) = ("future".into(), Some("java".into()), MeaningSource::Stack);
        let meaning = Meaning { name, software, idle: false, holder: false, source };
        let start = id * 60_000_000;
        let wait = StallRecord {
            lock: None,
            meaning: Some(Arc::new(meaning)),
            reason: StallReason::Blocked(Reason::Wait),
            ..lock_case(id, thread, by, ns)
        };
        let render = stack(&["nanosleep", "render", "run"]);
        let sleep = StallRecord {
            voluntary: true,
            user: Some(render),
            ..case(1_000 + id, by, StallReason::Blocked(Reason::Sleep), ns * 9 / 10)
        };
        [at(start, wait), at(start, sleep)]
    }

    /// A wait of thread 1 for a future, which worker 2 ends. The worker waits in its pool meanwhile, until loop 3 wakes it,
    /// and the loop in epoll, until `sender` answers.
    fn passed_on(id: u64, sender: Option<ThreadRef>) -> [StallRecord; 3] {
        let [wait, idle] = result(id, 1, 2, 30_000_000);
        let waker = |thread: Option<ThreadRef>| Some(WakerRecord { thread, user: None, kernel: None });
        let pool = Meaning { idle: true, ..meaning("pool") };
        let in_pool = StallRecord {
            reason: StallReason::Blocked(Reason::Wait),
            meaning: Some(Arc::new(pool)),
            user: Some(stack(&["pthread_cond_wait", "take_task", "run"])),
            waker: waker(Some(thread_ref(3))),
            ..idle
        };
        let in_epoll = StallRecord {
            voluntary: true,
            user: Some(stack(&["epoll_wait", "select_ready", "run"])),
            waker: waker(sender),
            ..at(id * 60_000_000, case(2_000 + id, 3, StallReason::Blocked(Reason::Poll), 27_000_000))
        };
        [wait, in_pool, in_epoll]
    }

    #[test]
    fn results_that_come_from_another_process_are_not_late_by_the_executor() {
        let of = |sender: Option<ThreadRef>| {
            Fixture::only_finding((1..=60).flat_map(|id| passed_on(id, sender.clone())))
        };
        let found = of(Some(untracked("quotes")));
        let said = ": thread-2 ended it in release_order, while thread-2 was waiting for thread-3 (pool in take_task), thread-3 \
            was waiting for quotes 900 (poll in select_ready).";
        assert!(found.title.ends_with(said), "{}", found.title);
        assert!(found.advice.starts_with("Look at what quotes 900 does meanwhile"), "{}", found.advice);
        for sender in [None, Some(untracked("ksoftirqd/1"))] {
            let found = of(sender);
            assert!(found.title.ends_with(", thread-3 was in poll in select_ready."), "{}", found.title);
            assert!(!found.advice.contains("executor"), "{}", found.advice);
            assert!(found.advice.starts_with("Look at what these threads wait for"), "{}", found.advice);
        }
    }

    #[test]
    fn results_of_other_threads_are_late_where_they_take_long_again_and_again() {
        let of = |count: u64, ns: u64, threads: u32| {
            Fixture::findings((1..=count).flat_map(|id| result(id, 1, 2 + id as u32 % threads, ns)))
        };
        let found = of(60, 30_000_000, 1);
        assert_eq!(found.len(), 1, "{found:#?}");
        let said = "waited for a future in take_order (called by handle_tick) 60 times, 1.80 s in all, up to 30.0 ms: thread-2 ended \
            it in release_order, while thread-2 was mostly in sleep in render";
        assert!(found[0].title.contains(said), "{}", found[0].title);
        assert!(found[0].advice.contains("executor"), "{}", found[0].advice);
        let several = of(60, 30_000_000, 3).remove(0).title;
        assert!(
            several.contains(
                "several threads named thread-* ended it in release_order, while they were mostly in"
            ),
            "{several}"
        );
        assert_eq!(of(7, 300_000_000, 1), [], "a program waits for its tasks at its end");
        assert_eq!(of(30, 30_000_000, 1), [], "9 % of the time");
        assert_eq!(of(360, 9_000_000, 1), [], "quick ones, for 32 % of the time");
        let quick = of(380, 9_000_000, 1).remove(0).title;
        assert!(quick.contains(" 380 times, 3.42 s in all, up to 9.00 ms: thread-2 ended it"), "{quick}");
        assert_eq!(of(5_000, 900_000, 1), [], "the shortest ones");
    }
}
