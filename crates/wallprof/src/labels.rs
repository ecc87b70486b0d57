// SPDX-License-Identifier: Apache-2.0
//! `--label KEY=VALUE` of `record` and `watch`.

use wallprof_model::{LabelError, Labels, MAX_LABEL_KEY, MAX_LABEL_VALUE, MAX_LABELS, label_from_text};

/// The labels of the command line.
///
/// # Errors
/// A text that is no label; a key with two values; too many labels. The sentence does not name the option.
pub fn labels_from_texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Labels, String> {
    let mut labels = Labels::new();
    for text in texts {
        let (key, value) = label_from_text(text).map_err(|error| sentence(text, error))?;
        if labels.get(&key).is_some_and(|known| *known != value) {
            return Err(format!("`{key}` has two values: give it one"));
        }
        labels.insert(key, value);
    }
    match labels.len() > MAX_LABELS {
        true => Err(format!("{} labels are too many: give at most {MAX_LABELS}", labels.len())),
        false => Ok(labels),
    }
}

fn sentence(text: &str, error: LabelError) -> String {
    match error {
        LabelError::HasNoEqualsSign => format!("`{text}` is not KEY=VALUE: write version=1.4"),
        LabelError::KeyIsNoName => format!(
            "the key of `{text}` is not a name: use letters, digits, `_`, `.` and `-`, with a letter first"
        ),
        LabelError::KeyIsTooLong => {
            format!(
                "a key has {} bytes: use at most {MAX_LABEL_KEY}",
                text.split('=').next().map_or(0, str::len)
            )
        }
        LabelError::ValueIsTooLong => {
            format!(
                "a value has {} bytes: use at most {MAX_LABEL_VALUE}",
                text.split_once('=').map_or(0, |(_, value)| value.len())
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_or_refused_in_a_sentence() {
        let labels = labels_from_texts(["version=1.4", "arm=bind_now", "arm=bind_now"]).unwrap();
        assert_eq!((labels.len(), labels["arm"].as_str()), (2, "bind_now"));
        assert!(labels_from_texts(["arm=a", "arm=b"]).unwrap_err().contains("two values"));
        assert!(labels_from_texts(["version"]).unwrap_err().contains("write version=1.4"));
        let long = format!("k={}", "v".repeat(10_240));
        assert!(labels_from_texts([long.as_str()]).unwrap_err().contains("10240 bytes"));
        let many: Vec<String> = (0..33).map(|at| format!("k{at}=")).collect();
        assert!(labels_from_texts(many.iter().map(String::as_str)).unwrap_err().contains("33 labels"));
    }
}
