// SPDX-License-Identifier: Apache-2.0
//! The site of a node of the tree in the program, by names alone.

use std::sync::Arc;

use wallprof_meaning::site::{MOST_FUNCTIONS, Site, is_plain_c_function};

use super::step::Step;
use super::tree::{NodeId, Tree};

/// The program's functions from the node outwards, and the library function through which it waited. `None`
/// where the node has no function above it.
pub(crate) fn site_of(tree: &Tree, node: NodeId) -> Option<Site> {
    let walked: Vec<_> = tree.upwards(node).filter_map(|id| tree.walked(id)).collect();
    let named: Vec<(Arc<str>, bool, bool)> = walked
        .iter()
        .filter_map(|(step, is_plumbing)| match step {
            Step::Function(name) => Some((name.clone(), false, *is_plumbing)),
            Step::Kernel(name) => Some((name.clone(), true, *is_plumbing)),
            Step::Unnamed(_) => Some((step.to_string().into(), false, *is_plumbing)),
            Step::Unsampled | Step::State(_) => None,
        })
        .collect();
    // Kernel functions name the place only if no other function does.
    let is_program = |(_, is_kernel, is_plumbing): &&(Arc<str>, bool, bool)| !is_kernel && !is_plumbing;
    let functions: Vec<Arc<str>> =
        named.iter().filter(is_program).take(MOST_FUNCTIONS).map(|(name, ..)| name.clone()).collect();
    if functions.is_empty() {
        let best = named.iter().find(|(.., is_plumbing)| !is_plumbing).or(named.first())?;
        return Some(Site { functions: vec![best.0.clone()], through: None });
    }
    let innermost = named.iter().position(|named| is_program(&named)).unwrap_or(named.len());
    let below = named[..innermost].iter().rev().filter(|(_, is_kernel, _)| !is_kernel);
    let mut below = below.map(|(name, ..)| name);
    let through = below.clone().find(|name| is_plain_c_function(name)).or_else(|| below.next());
    Some(Site { functions, through: through.cloned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::collect::Group;
    use wallprof_model::{Reason, State};

    fn site(steps: &[(Step, bool)]) -> Option<Site> {
        let mut tree = Tree::default();
        let group = tree.group_node(&Group { process: "app".into(), thread: "t".into() });
        let node = tree.leaf(group, steps.to_vec());
        site_of(&tree, node)
    }

    fn function(name: &str, is_plumbing: bool) -> (Step, bool) {
        (Step::Function(name.into()), is_plumbing)
    }

    #[test]
    fn a_site_names_the_program_and_the_way_out_of_it() {
        let found = site(&[
            function("main", false),
            function("take", false),
            function("pthread_mutex_lock", true),
            function("__lll_lock_wait", true),
            (Step::Kernel("schedule".into()), true),
            (Step::State(State::Blocked(Reason::Lock)), true),
        ]);
        let found = found.unwrap();
        assert_eq!(found.functions, [Arc::from("take"), "main".into()]);
        assert_eq!(found.through.as_deref(), Some("pthread_mutex_lock"));
    }

    #[test]
    fn without_the_program_kernel_functions_name_the_site() {
        let kernel = |name: &str, plumbing| (Step::Kernel(name.into()), plumbing);
        let found = site(&[kernel("kthread", true), kernel("kjournald2", false), kernel("schedule", true)]);
        assert_eq!(found.unwrap().functions, [Arc::from("kjournald2")]);
        assert_eq!(site(&[(Step::Unsampled, true), (Step::State(State::User), true)]), None);
        let found = site(&[(Step::Unnamed("x.so".into()), false)]);
        assert_eq!(found.unwrap().functions, [Arc::from("[x.so]")]);
    }
}
