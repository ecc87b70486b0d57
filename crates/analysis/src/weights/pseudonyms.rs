// SPDX-License-Identifier: Apache-2.0
//! Stacks without their names, for profiles that are shown to readers who must not know the program.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_model::profile::ResolvedFrame;
use wallprof_model::{FrameKind, Meaning, SymbolLine};

use super::calls::Called;
use super::frame::{Frame, Mark};
use super::stack::{WeightedThread, Weights};

impl Weights {
    /// The same weights with pseudonyms for functions (`f1`), modules (`m1`), processes (`p1`) and threads
    /// (`t1`) and meanings of waits (`w1`), numbered as they are met: the same name gets the same one everywhere. Source files, lines,
    /// addresses and build ids are left out, as they say which program it is. Kernel functions and states
    /// keep their names.
    pub fn anonymized(self) -> Weights {
        let mut names = Pseudonyms::default();
        let threads = self.threads.iter().map(|thread| names.thread(thread)).collect();
        let frames = self.frames.replaced(|frame| names.frame(frame));
        Weights { threads, frames, ..self }
    }
}

#[derive(Default)]
struct Pseudonyms {
    functions: Numbers,
    modules: Numbers,
    processes: Numbers,
    threads: Numbers,
    meanings: Numbers,
}

/// Names by the order in which they came.
#[derive(Default)]
struct Numbers(HashMap<String, usize>);

impl Numbers {
    fn of(&mut self, name: &str) -> usize {
        let next = self.0.len() + 1;
        *self.0.entry(name.into()).or_insert(next)
    }
}

impl Pseudonyms {
    fn thread(&mut self, thread: &WeightedThread) -> WeightedThread {
        let number = self.threads.of(&thread.comm);
        let process = self.processes.of(&thread.process);
        // With access to the machine an id identifies a thread as well as a name.
        WeightedThread { process: format!("p{process}"), comm: format!("t{number}"), pid: 0, tid: 0 }
    }

    fn frame(&mut self, frame: &Frame) -> Frame {
        match frame {
            Frame::Code(code) if code.kind == FrameKind::Kernel => Frame::Code(Arc::clone(code)),
            Frame::Code(code) => Frame::Code(Arc::new(self.code(code))),
            Frame::Called(called) if called.code.kind == FrameKind::Kernel => frame.clone(),
            Frame::Called(called) => {
                Frame::Called(Called { code: Arc::new(self.code(&called.code)), ..called.clone() })
            }
            Frame::Mark(Mark::WakerThread(name)) => {
                Frame::Mark(Mark::WakerThread(format!("t{}", self.threads.of(name)).into()))
            }
            // The software's name says which program it is, and a rule of the user may name anything.
            Frame::Mark(Mark::Meaning(meaning)) => Frame::Mark(Mark::Meaning(self.meaning(meaning))),
            Frame::Mark(mark) => Frame::Mark(mark.clone()),
        }
    }

    fn meaning(&mut self, meaning: &Meaning) -> Arc<Meaning> {
        let software = meaning.software.as_deref().unwrap_or_default();
        let number = self.meanings.of(&format!("{software}\0{}", meaning.name));
        Arc::new(Meaning { name: format!("w{number}"), software: None, ..*meaning })
    }

    fn code(&mut self, code: &ResolvedFrame) -> ResolvedFrame {
        let module = code.module.as_deref().map(|module| format!("m{}", self.modules.of(module)));
        let lines = code.lines.iter().map(|line| SymbolLine {
            symbol: Some(format!("f{}", self.function(code, line))),
            inlined: line.inlined,
            ..SymbolLine::default()
        });
        ResolvedFrame { kind: code.kind, build_id: None, address: 0, lines: lines.collect(), module }
    }

    /// A function is known by its name, an unknown one by where it is. The two cannot be equal: no symbol
    /// holds a NUL.
    fn function(&mut self, code: &ResolvedFrame, line: &SymbolLine) -> usize {
        match &line.symbol {
            Some(symbol) => self.functions.of(symbol),
            None => {
                let module = code.module.as_deref().unwrap_or_default();
                self.functions.of(&format!("\0{module}\0{:x}", code.address))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::{code, kernel_code, unnamed};
    use crate::weights::{Frames, View};

    #[test]
    fn names_go_and_the_structure_stays() {
        let mut frames = Frames::default();
        let unknown = unnamed(Some("/opt/engine"), FrameKind::Native, 0x77);
        for frame in
            [code(&["secret_inner", "secret"]), code(&["secret"]), unknown, kernel_code("futex_wait")]
        {
            frames.code(&frame);
        }
        frames.mark(Mark::WakerThread("keeper".into()));
        frames.mark(Mark::Unsampled);
        frames.mark(Mark::Meaning(Arc::new(Meaning {
            name: "ledger lock".into(),
            software: Some("bank".into()),
            idle: false,
            holder: true,
            source: wallprof_model::MeaningSource::User,
        })));
        let thread =
            |comm: &str| WeightedThread { process: "bank".into(), comm: comm.into(), pid: 7, tid: 8 };
        let threads = vec![thread("engine"), thread("keeper")];
        let weights =
            Weights { view: View::Wall, threads, frames, stacks: vec![], left_out_ns: 0 }.anonymized();
        let names: Vec<_> =
            weights.frames.iter().flat_map(|frame| frame.functions()).map(|function| function.name).collect();
        assert_eq!(names, ["f2", "f1", "f2", "f3", "futex_wait", "t2", "[unsampled]", "[w1]"]);
        assert_eq!(
            weights.threads[1],
            WeightedThread { process: "p1".into(), comm: "t2".into(), pid: 0, tid: 0 }
        );
        let known = |frame: &&Frame| matches!(frame, Frame::Code(code) if code.kind != FrameKind::Kernel);
        let shown = format!("{:?}", weights.frames.iter().filter(known).collect::<Vec<_>>());
        for name in ["secret", "engine", "/src", "Some(7)", "171", "4096", "119"] {
            assert!(!shown.contains(name), "{name}: {shown}");
        }
    }
}
