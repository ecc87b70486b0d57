// SPDX-License-Identifier: Apache-2.0
//! The object: opened, configured and loaded.

use std::mem::MaybeUninit;

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::attach::Program;
use crate::bpf::{OpenWallprofSkel, WallprofSkel, WallprofSkelBuilder};
use crate::cpu_events::clock_period_ns;
use crate::error::ProbeError;
use crate::features::{Features, KernelTypes};
use crate::plan::{MAX_NAME_GLOBS, ProbeOptions, Targets, UserStacks, left_out};
use crate::{messages, reasons};

/// Opens, configures and loads the object for a recording. It stays loaded until the process ends, so its
/// memory is leaked.
pub(crate) fn load(
    options: &ProbeOptions,
    types: &KernelTypes,
    features: Features,
) -> Result<WallprofSkel<'static>, ProbeError> {
    load_without(options, features, |programs| left_out(programs, types, options))
}

/// As [`load`], with these programs alone.
pub(crate) fn load_only(
    options: &ProbeOptions,
    features: Features,
    wanted: &[&str],
) -> Result<WallprofSkel<'static>, ProbeError> {
    let unwanted = |program: &&Program<'_>| !wanted.contains(&program.name);
    let names = |program: &Program<'_>| program.name.to_owned();
    load_without(options, features, |programs| programs.iter().filter(unwanted).map(names).collect())
}

fn load_without(
    options: &ProbeOptions,
    features: Features,
    left_out: impl FnOnce(&[Program<'_>]) -> Vec<String>,
) -> Result<WallprofSkel<'static>, ProbeError> {
    let log = messages::capture();
    let memory: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = WallprofSkelBuilder::default()
        .open(memory)
        .map_err(|error| ProbeError::from_load(&error, &log.all()))?;
    configure(&mut open, options, features);
    if options.guarded.is_empty() {
        // No program uses the map: it takes the least memory that it can.
        let _ = open.maps.noise.set_max_entries(1);
    }
    leave_out(&mut open, left_out);
    open.load().map_err(|error| ProbeError::from_load(&error, &log.all()))
}

/// Prevents the loading of the programs that `choose` names out of all.
pub(crate) fn leave_out(open: &mut OpenWallprofSkel<'_>, choose: impl FnOnce(&[Program<'_>]) -> Vec<String>) {
    let left_out = {
        let programs = open.open_object().progs();
        choose(&programs.map(|program| Program::new(program.name(), program.section())).collect::<Vec<_>>())
    };
    for mut program in open.open_object_mut().progs_mut() {
        if left_out.iter().any(|name| program.name() == name.as_str()) {
            program.set_autoload(false);
        }
    }
}

/// Sets the constants of the programs, which are fixed once the object is loaded.
pub(crate) fn configure(open: &mut OpenWallprofSkel<'_>, options: &ProbeOptions, features: Features) {
    if let Some(data) = open.maps.data_data.as_deref_mut() {
        data.stall_ns = options.min_stall_ns;
        data.voluntary_stall_ns = options.min_stall_ns;
        data.min_stall_ns = options.min_stall_ns;
        data.stack_ns = options.min_stall_ns;
    }
    let Some(rodata) = open.maps.rodata_data.as_deref_mut() else { return };
    rodata.stacks_at_switch_out = !features.sched_exit_tp;
    rodata.busy_budget_ns = options.busy_budget_ns.unwrap_or(u64::MAX);
    rodata.follow_children = options.targets.follow_children();
    rodata.every_thread = options.targets == Targets::Everything;
    rodata.limit_cpus = options.cpus.is_some();
    for cpu in options.cpus.iter().flatten() {
        if let Some(word) = rodata.cpu_mask.get_mut(*cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    rodata.probes_spans = !options.spans.is_empty();
    rodata.guards = !options.guarded.is_empty();
    rodata.calls_name_functions = features.ipi_functions;
    rodata.guarded_count = options.guarded.len().min(rodata.guarded.len()) as u32;
    for (place, cpu) in rodata.guarded.iter_mut().zip(&options.guarded) {
        *place = *cpu;
        if let Some(word) = rodata.guard_mask.get_mut(*cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    rodata.syscall_class = reasons::syscall_classes();
    if let Some(group) = options.targets.cgroup() {
        rodata.cgroup_id = group.id;
        rodata.cgroup_hierarchy = group.hierarchy;
    }
    let globs = options.targets.names();
    rodata.name_glob_count = globs.len().min(MAX_NAME_GLOBS) as u32;
    for (place, glob) in rodata.name_globs.iter_mut().zip(globs) {
        (place.takes, place.loops, place.accepts) = (*glob.takes, glob.loops, glob.accepts);
    }
    rodata.walk_by_tables = options.user_stacks == UserStacks::Tables;
    rodata.clock_period_ns = clock_period_ns(options.sample_hz);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Name and section of each program, in the order of the object.
    pub(crate) fn programs_of_the_object() -> Vec<(String, String)> {
        let mut memory = MaybeUninit::uninit();
        let open = WallprofSkelBuilder::default().open(&mut memory).expect("the object is well-formed");
        let text = |text: &std::ffi::OsStr| text.to_str().expect("ASCII").to_owned();
        open.open_object().progs().map(|program| (text(program.name()), text(program.section()))).collect()
    }
}
