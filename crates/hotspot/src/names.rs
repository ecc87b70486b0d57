// SPDX-License-Identifier: Apache-2.0
//! The name of a method, as the JVM's own perf map has it: `void java.lang.Object.wait(long)`.

use crate::layout::Layout;
use crate::memory::{Memory, bytes, word};

/// Of a class, a method, a signature. Longer ones are not read.
const MOST_SYMBOL: u64 = 4_096;
/// A longer name is cut.
pub(crate) const MOST_NAME: usize = 1_024;

/// The name of the method at this address, of at most [`MOST_NAME`] bytes.
pub(crate) fn method(memory: &dyn Memory, layout: &Layout, method: u64) -> Option<String> {
    let read = |of, name, at| layout.field(of, name)?.read(memory, at);
    let const_method = read("Method", "_constMethod", method)?;
    let pool = read("ConstMethod", "_constants", const_method)?;
    let in_pool = |index| symbol_in(memory, layout, pool, read("ConstMethod", index, const_method)?);
    let (name, signature) = (in_pool("_name_index")?, in_pool("_signature_index")?);
    let holder = read("ConstantPool", "_pool_holder", pool)?;
    let class = symbol(memory, layout, read("Klass", "_name", holder)?)?.replace('/', ".");
    let mut whole = match readable(&signature) {
        Some((parameters, result)) => format!("{result} {class}.{name}({})", parameters.join(", ")),
        None => format!("{class}.{name}{signature}"),
    };
    let is_end = |&end: &usize| whole.is_char_boundary(end);
    whole.truncate((0..=whole.len().min(MOST_NAME)).rev().find(is_end).unwrap_or(0));
    Some(whole)
}

/// The name of the source file of a method's class, without its folder.
pub(crate) fn file(memory: &dyn Memory, layout: &Layout, method: u64) -> Option<String> {
    let read = |of, name, at| layout.field(of, name)?.read(memory, at);
    let pool = read("ConstMethod", "_constants", read("Method", "_constMethod", method)?)?;
    let index = read("ConstantPool", "_source_file_name_index", pool).filter(|&index| index != 0)?;
    symbol_in(memory, layout, pool, index).filter(|file| file.len() <= MOST_NAME)
}

fn symbol_in(memory: &dyn Memory, layout: &Layout, pool: u64, index: u64) -> Option<String> {
    let slots = pool.checked_add(layout.size("ConstantPool")?)?;
    symbol(memory, layout, word(memory, slots.checked_add(index.checked_mul(8)?)?)?)
}

fn symbol(memory: &dyn Memory, layout: &Layout, at: u64) -> Option<String> {
    let len = layout.field("Symbol", "_length")?.read(memory, at)?;
    let body = at.checked_add(layout.field("Symbol", "_body")?.at)?;
    let bytes = bytes(memory, body, len, MOST_SYMBOL)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The types of the parameters and of the result (The Java Virtual Machine Specification, 4.3.3).
fn readable(signature: &str) -> Option<(Vec<String>, String)> {
    let mut rest = signature.strip_prefix('(')?;
    let mut parameters = Vec::new();
    while !rest.starts_with(')') {
        parameters.push(take_type(&mut rest)?);
    }
    rest = &rest[1..];
    let result = take_type(&mut rest)?;
    rest.is_empty().then_some((parameters, result))
}

fn take_type(rest: &mut &str) -> Option<String> {
    let of = rest.trim_start_matches('[');
    let dimensions = rest.len() - of.len();
    let kind = of.chars().next()?;
    let (name, after) = match kind {
        'L' => {
            let (class, after) = of[1..].split_once(';')?;
            (class.replace('/', "."), after)
        }
        _ => {
            let name = match kind {
                'B' => "byte",
                'C' => "char",
                'D' => "double",
                'F' => "float",
                'I' => "int",
                'J' => "long",
                'S' => "short",
                'Z' => "boolean",
                'V' => "void",
                _ => return None,
            };
            (name.to_owned(), &of[1..])
        }
    };
    *rest = after;
    Some(name + &"[]".repeat(dimensions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_readable() {
        let shown =
            |signature| readable(signature).map(|(parameters, result)| (parameters.join(","), result));
        let shows = |parameters: &str, result: &str| Some((parameters.to_owned(), result.to_owned()));
        assert_eq!(shown("()V"), shows("", "void"));
        assert_eq!(
            shown("(J[[ILjava/lang/String;Z)[Ljava/util/Map$Entry;"),
            shows("long,int[][],java.lang.String,boolean", "java.util.Map$Entry[]")
        );
        for damaged in ["", "(", "()", "(V", "(X)V", "(Ljava/lang/String)V", "()VV", "()[", "(é)V"] {
            assert_eq!(shown(damaged), None, "{damaged}");
        }
    }
}
