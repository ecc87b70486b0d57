// SPDX-License-Identifier: Apache-2.0
//! The files for Prometheus and Grafana name the watcher's metrics.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wallprof_watch::NAMES;

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(contrib(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Names of metrics in a text, histograms without their suffixes.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("wallprof_"));
    let plain = |word: &str| {
        ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix).map(str::to_string))
    };
    ours.map(|word| plain(word).unwrap_or_else(|| word.to_string())).collect()
}

#[test]
fn only_metrics_that_exist_are_named() {
    let known: BTreeSet<String> = NAMES.iter().map(|name| name.to_string()).collect();
    for file in ["alerts.yml", "grafana.json"] {
        let named = metrics_in(&read(file));
        assert!(named.is_subset(&known), "{file}: {:?}", named.difference(&known));
    }
    assert_eq!(metrics_in(&read("grafana.json")), known, "the dashboard shows all");
}

#[test]
fn the_dashboard_is_json_whose_panels_do_not_overlap() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut places = BTreeSet::new();
    for panel in panels {
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for x in at("x")..at("x") + at("w") {
            assert!(places.insert((x, at("y"))), "{}", panel["title"]);
        }
        let has_targets = panel["targets"].as_array().is_some_and(|targets| !targets.is_empty());
        assert!(has_targets || panel["type"] == "row", "{}", panel["title"]);
    }
}

#[test]
fn promtool_takes_the_rules() {
    let Ok(output) = Command::new("promtool").args(["check", "rules"]).arg(contrib("alerts.yml")).output()
    else {
        return wallprof_testkit::skip("promtool_takes_the_rules", "promtool is not installed");
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("9 rules found"), "{said}");
}

#[test]
fn the_example_configuration_is_one() {
    let text = read("wallprof.toml");
    let all: String = text
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    for text in [text, all] {
        wallprof_watch::Config::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
}
