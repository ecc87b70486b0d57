//! Which formats there are.

/// A format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// See [`folded`](super::folded).
    Folded,
    /// See [`speedscope`](super::speedscope).
    Speedscope,
    /// See [`pprof`](super::pprof).
    Pprof,
}

impl ExportFormat {
    pub const ALL: [ExportFormat; 3] = [ExportFormat::Folded, ExportFormat::Speedscope, ExportFormat::Pprof];

    /// The name by which users ask for it.
    pub fn name(self) -> &'static str {
        match self {
            ExportFormat::Folded => "folded",
            ExportFormat::Speedscope => "speedscope",
            ExportFormat::Pprof => "pprof",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for format in ExportFormat::ALL {
            assert_eq!(ExportFormat::from_name(format.name()), Some(format));
        }
        assert_eq!(ExportFormat::from_name("svg"), None);
    }
}
