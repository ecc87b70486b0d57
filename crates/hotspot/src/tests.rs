// SPDX-License-Identifier: Apache-2.0
//! A virtual machine of a few structures, in memory that the tests write.

use std::cell::RefCell;
use std::collections::BTreeMap;

use wallprof_unwind::{Rule, RuleKind};

use crate::layout::{VARIABLES, Variables};
use crate::{CodeCache, CodeSpan, Function, Memory};

/// Bytes by address of the first one.
#[derive(Default)]
struct Fake(RefCell<BTreeMap<u64, Vec<u8>>>);

impl Memory for Fake {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let pieces = self.0.borrow();
        let Some((start, bytes)) = pieces.range(..=address).next_back() else { return false };
        let at = (address - start) as usize;
        let found = bytes.get(at..at + buffer.len());
        found.inspect(|found| buffer.copy_from_slice(found)).is_some()
    }
}

impl Fake {
    fn put(&self, address: u64, bytes: Vec<u8>) {
        self.0.borrow_mut().insert(address, bytes);
    }

    fn words(&self, address: u64, words: &[u64]) {
        self.put(address, words.iter().flat_map(|word| word.to_le_bytes()).collect());
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        let mut pieces = self.0.borrow_mut();
        let (start, piece) = pieces.range_mut(..=address).next_back().expect("memory");
        let at = (address - start) as usize;
        piece[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

const STRINGS: u64 = 0x10_0000;
const STRUCTS: u64 = 0x20_0000;
const TYPES: u64 = 0x30_0000;
const VALUES: u64 = 0x40_0000;
const HEAPS: u64 = 0x50_0000;
const HEAP: u64 = 0x51_0000;
const SEGMENTS: u64 = 0x52_0000;
const CODE: u64 = 0x7f00_0000_0000;
const MAPS: u64 = 0x53_0000;
const METHOD: u64 = 0x54_0000;
const POOL: u64 = 0x56_0000;
const FLAGS: u64 = 0x57_0000;
const SCOPES: u64 = 0x58_0000;
/// A method that is compiled as a part of the other one.
const PART: u64 = 0x59_0000;
const PLACES: u64 = CODE + 0x10_0000;
/// Behind what is in use.
const RESERVED: u64 = 0x1_0000;

/// Type, field, its type, and where it lies; of the static one its address.
const FIELDS: [(&str, &str, &str, u64); 46] = [
    ("CodeCache", "_heaps", "GrowableArray<CodeHeap*>*", HEAPS),
    ("Unrelated", "_low", "char*", 7),
    ("GrowableArrayBase", "_len", "int", 0),
    ("GrowableArray<int>", "_data", "int*", 8),
    ("CodeHeap", "_memory", "VirtualSpace", 0),
    ("CodeHeap", "_segmap", "VirtualSpace", 24),
    ("CodeHeap", "_log2_segment_size", "int", 48),
    ("VirtualSpace", "_low", "char*", 0),
    ("VirtualSpace", "_high", "char*", 8),
    ("VirtualSpace", "_high_boundary", "char*", 16),
    ("JVMFlag", "flags", "JVMFlag*", FLAGS),
    ("JVMFlag", "numFlags", "size_t", FLAGS + 8),
    ("JVMFlag", "_name", "const char*", 0),
    ("JVMFlag", "_addr", "NULL", 8),
    ("HeapBlock", "_header", "HeapBlock::Header", 0),
    ("HeapBlock::Header", "_length", "size_t", 0),
    ("HeapBlock::Header", "_used", "bool", 8),
    ("CodeBlob", "_name", "const char*", 0),
    ("CodeBlob", "_frame_size", "int", 8),
    ("CodeBlob", "_oop_maps", "ImmutableOopMapSet*", 16),
    ("CodeBlob", "_code_begin", "address", 24),
    ("CodeBlob", "_code_end", "address", 32),
    ("CompiledMethod", "_method", "Method*", 40),
    ("nmethod", "_osr_entry_point", "address", 48),
    ("nmethod", "_entry_bci", "int", 56),
    ("nmethod", "_compile_id", "int", 60),
    ("ImmutableOopMapSet", "_count", "int", 0),
    ("ImmutableOopMapPair", "_pc_offset", "int", 0),
    ("Method", "_constMethod", "ConstMethod*", 0),
    ("ConstMethod", "_constants", "ConstantPool*", 0),
    ("ConstMethod", "_name_index", "u2", 8),
    ("ConstMethod", "_signature_index", "u2", 10),
    ("ConstMethod", "_flags", "u2", 12),
    ("ConstMethod", "_code_size", "u2", 14),
    ("ConstMethod", "_constMethod_size", "int", 16),
    ("ConstantPool", "_source_file_name_index", "u2", 48),
    ("CompiledMethod", "_scopes_data_begin", "address", 64),
    ("nmethod", "_scopes_pcs_offset", "int", 72),
    ("nmethod", "_dependencies_offset", "int", 76),
    ("nmethod", "_metadata_offset", "int", 80),
    ("PcDesc", "_pc_offset", "int", 0),
    ("PcDesc", "_scope_decode_offset", "int", 4),
    ("Abstract_VM_Version", "_vm_major_version", "int", FLAGS + 72),
    ("ConstantPool", "_pool_holder", "InstanceKlass*", 0),
    ("Klass", "_name", "Symbol*", 0),
    ("Symbol", "_body", "", 2),
];
const LENGTH: (&str, &str, &str, u64) = ("Symbol", "_length", "u2", 0);
const SIZES: [(&str, u64); 7] = [
    ("HeapBlock", 16),
    ("ConstantPool", 8),
    ("ConstMethod", 24),
    ("PcDesc", 8),
    ("ImmutableOopMapSet", 8),
    ("ImmutableOopMapPair", 8),
    ("JVMFlag", 24),
];
const SEGMENT: u64 = 128;
/// A method, a free block, the interpreter: each of two segments.
const MAP: [u8; 8] = [0, 1, 0xff, 0xff, 0, 1, 0xff, 0xff];
const BLOCK: u64 = 16;
const HEAD: u64 = 88;
/// push %rbp; sub $0x10,%rsp; call; add $0x10,%rsp; pop %rbp; ret
const TEXT: [u8; 16] = [0x55, 0x48, 0x83, 0xec, 0x10, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 0x10, 0x5d, 0xc3];
const FRAME: u64 = 32;

/// Adds texts, each of which is read with what follows it.
struct Strings {
    bytes: Vec<u8>,
}

impl Strings {
    fn add(&mut self, text: &str) -> u64 {
        let at = STRINGS + self.bytes.len() as u64;
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        at
    }
}

fn block(name: u64, words: u64, at: u64, compile_id: u32) -> Vec<u8> {
    let code = at + BLOCK + HEAD;
    let mut bytes = Vec::new();
    for word in [2, 1, name, words, MAPS, code, code + TEXT.len() as u64, METHOD, 0] {
        bytes.extend(u64::to_le_bytes(word));
    }
    bytes.extend((-1i32).to_le_bytes());
    bytes.extend(compile_id.to_le_bytes());
    bytes.extend(SCOPES.to_le_bytes());
    // Places, their end, and methods, from the blob.
    let from_blob = [0x20u64, 0x40, 0x60].map(|at| (PLACES + at).wrapping_sub(CODE + BLOCK) as u32);
    from_blob.into_iter().chain([0]).for_each(|distance| bytes.extend(distance.to_le_bytes()));
    bytes.extend(TEXT);
    bytes.resize(2 * SEGMENT as usize, 0xcc);
    bytes
}

/// `excluded`: what the version adds to each byte of a number.
fn const_method(name: u16, excluded: u8) -> Vec<u8> {
    let mut bytes = POOL.to_le_bytes().to_vec();
    // Name, signature, flags, bytes of code.
    bytes.extend([name, 2, 1, 6].map(u16::to_le_bytes).as_flattened());
    bytes.extend(6u64.to_le_bytes());
    bytes.extend([0xcb; 6]);
    // Byte code 0 on line 40, byte code 5 on line 43.
    bytes.extend([0xff, excluded, 80 + excluded, 5 << 3 | 3, 0]);
    bytes.resize(48, 0xee);
    bytes
}

/// Caller, method, byte code plus 1.
fn scopes(excluded: u8) -> Vec<u8> {
    let scopes = [[4, 2, 3], [0, 1, 6], [0, 1, 0]].concat();
    let mut bytes = vec![0xee];
    bytes.extend(scopes.iter().map(|byte| byte + excluded));
    bytes.resize(32, 0xee);
    bytes
}

fn fake() -> (Fake, Variables, [u64; 3]) {
    let fake = Fake::default();
    let mut strings = Strings { bytes: Vec::new() };
    let mut structs = Vec::new();
    for (of, field, type_name, at) in FIELDS.into_iter().chain([LENGTH]) {
        let is_static = of == "CodeCache" || ["flags", "numFlags", "_vm_major_version"].contains(&field);
        let names = [strings.add(of), strings.add(field), strings.add(type_name)];
        structs.extend(names);
        structs.extend([
            u64::from(is_static),
            if is_static { 0 } else { at },
            if is_static { at } else { 0 },
        ]);
    }
    structs.extend([0; 6]);
    fake.words(STRUCTS, &structs);
    let mut types = Vec::new();
    for (of, size) in SIZES {
        types.extend([strings.add(of), 0, 0, 0, size]);
    }
    types.extend([0; 5]);
    fake.words(TYPES, &types);
    fake.words(VALUES, &[STRUCTS, 0, 8, 16, 24, 32, 40, 48, TYPES, 0, 32, 40]);
    let names = ["nmethod", "Interpreter", "I2C/C2I adapters"].map(|name| strings.add(name));
    let flags = ["UseG1GC", "PreserveFramePointer"].map(|name| strings.add(name));
    fake.words(FLAGS, &[FLAGS + 16, 2, flags[0], FLAGS + 64, 0, flags[1], FLAGS + 65, 0, 1, 17]);
    strings.bytes.extend([0; 256]);
    fake.put(STRINGS, strings.bytes);
    // HEAPS is the variable that has the array's address.
    fake.words(HEAPS, &[HEAPS + 64, 0, 0, 0, 0, 0, 0, 0, 1, HEAPS + 128, 0, 0, 0, 0, 0, 0, HEAP]);
    let segments = MAP.len() as u64;
    let end = CODE + segments * SEGMENT;
    fake.words(HEAP, &[CODE, end, end + RESERVED, SEGMENTS, SEGMENTS + segments, 0, 7]);
    fake.put(SEGMENTS, MAP.to_vec());
    let other = CODE + 4 * SEGMENT;
    let mut code = block(names[0], FRAME / 8, CODE, 1);
    code.extend([0; 2 * SEGMENT as usize]);
    code.extend(block(names[1], 0, other, 0));
    code.extend([0; 2 * SEGMENT as usize]);
    fake.put(CODE, code);
    fake.put(MAPS, [1u32, 16, 10, 0].iter().flat_map(|word| word.to_le_bytes()).collect());
    for (method, name) in [(METHOD, 1), (PART, 3)] {
        fake.words(method, &[method + 0x100]);
        fake.put(method + 0x100, const_method(name, 0));
    }
    fake.words(POOL, &[POOL + 0x100, 0, POOL + 0x200, POOL + 0x300, POOL + 0x500, POOL + 0x600, 4]);
    fake.words(POOL + 0x100, &[POOL + 0x400]);
    let texts =
        [(0x200, "total"), (0x300, "(J)I"), (0x400, "shop/Orders"), (0x500, "part"), (0x600, "Orders.java")];
    for (at, text) in texts {
        fake.put(POOL + at, [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat());
    }
    let places =
        [(-1, 0), (10, 1), (16, 7), (i32::MAX, 0)].map(|(at, scope): (i32, u32)| [at.cast_unsigned(), scope]);
    let mut bytes = vec![0; 0x20];
    bytes.extend(places.as_flattened().iter().flat_map(|number| number.to_le_bytes()));
    bytes.resize(0x60, 0);
    bytes.extend([METHOD, PART].map(u64::to_le_bytes).as_flattened());
    fake.put(PLACES, bytes);
    fake.put(SCOPES, scopes(0));
    (fake, std::array::from_fn(|index| VALUES + 8 * index as u64), names)
}

fn read(fake: &Fake, variables: &Variables) -> CodeCache {
    let mut cache = CodeCache::new(fake, variables).expect("it describes all that is needed");
    assert_eq!(cache.update(fake, true, 10), Some(true));
    cache
}

fn names(cache: &mut CodeCache, fake: &Fake, at: u64) -> Vec<String> {
    let found = cache.functions_at(fake, at, u64::MAX).expect("it is there now");
    found.into_iter().map(|function| function.name).collect()
}

#[test]
fn methods_and_the_interpreter_have_names_and_rules() {
    let (fake, variables, _) = fake();
    let mut cache = read(&fake, &variables);
    let (method, interpreter) = (CODE + BLOCK + HEAD, CODE + 4 * SEGMENT + BLOCK + HEAD);
    assert_eq!(names(&mut cache, &fake, method + 15), ["int shop.Orders.total(long)"]);
    assert_eq!(names(&mut cache, &fake, method + 16), [""; 0]);
    assert_eq!(names(&mut cache, &fake, CODE - 1), [""; 0]);
    assert_eq!(names(&mut cache, &fake, interpreter), ["Interpreter"]);
    let table = cache.table().expect("blobs do not overlap");
    let body = Rule { cfa_offset: FRAME as i32, fp: -2, ..Rule::RETURN_ADDRESS_ON_TOP };
    assert_eq!(table.rule_at(method), Rule::RETURN_ADDRESS_ON_TOP);
    assert_eq!(table.rule_at(method + 9), body);
    assert_eq!(table.rule_at(method + 15), Rule::RETURN_ADDRESS_ON_TOP);
    let interpreted = table.rule_at(interpreter + 3);
    assert_eq!((interpreted.kind, interpreted.ra), (RuleKind::FpDeref, 1));
    assert_eq!(table.rule_at(method + 16), Rule::UNSUPPORTED, "the walker guesses nothing between them");
    assert_eq!(table.rule_at(CODE + MAP.len() as u64 * SEGMENT), Rule::UNCOVERED);
}

#[test]
fn methods_that_are_compiled_as_parts_of_others_have_names_and_lines() {
    for version in [17, 21, 25] {
        let (fake, variables, _) = fake();
        let excluded = u8::from(version >= 20);
        fake.write(FLAGS + 72, &[version]);
        fake.write(SCOPES, &scopes(excluded));
        fake.write(METHOD + 0x100, &const_method(1, excluded));
        fake.write(PART + 0x100, &const_method(3, excluded));
        let mut cache = read(&fake, &variables);
        let function = |name: &str, offset, line| Function {
            name: format!("int shop.Orders.{name}(long)"),
            offset,
            source: Some(("Orders.java".into(), line)),
        };
        let code = CODE + BLOCK + HEAD;
        // The call that returns to 10.
        let mut found = |at| cache.functions_at(&fake, code + at, 0).expect("nothing else was there");
        let whole = [function("part", None, Some(40)), function("total", Some(9), Some(43))];
        assert_eq!(found(9), whole, "{version}");
        assert_eq!(found(10), [function("total", Some(10), None)], "{version}");
        // A call without a description of its own has not the one of the next place.
        fake.write(PLACES + 0x28, &12u32.to_le_bytes());
        assert_eq!(found(9), [function("total", Some(9), None)], "{version}");
        assert_eq!(found(11)[0], function("part", None, Some(40)), "{version}");
        fake.write(PLACES + 0x28, &10u32.to_le_bytes());
        // Scopes that end in another method, in none, or not at all.
        for damage in [[1, 2, 3], [0, 7, 3], [0, 0, 0], [0xff; 3]] {
            fake.write(SCOPES + 1, &damage.map(|byte: u8| byte.saturating_add(excluded)));
            assert_eq!(found(9), [function("total", Some(9), None)], "{damage:?}");
        }
    }
}

#[test]
fn interpreted_methods_have_names() {
    let (fake, variables, _) = fake();
    let cache = read(&fake, &variables);
    let name = |at| cache.interpreted(&fake, at).map(|function| function.name);
    assert_eq!(name(METHOD).as_deref(), Some("int shop.Orders.total(long)"));
    assert_eq!(name(METHOD + 0x100), None);
}

#[test]
fn code_is_read_once_more_as_it_is_written_after_its_head() {
    let (fake, variables, _) = fake();
    let code = CODE + BLOCK + HEAD;
    fake.write(code + 4, &[0; 12]);
    let mut cache = read(&fake, &variables);
    let body = Rule { cfa_offset: FRAME as i32, fp: -2, ..Rule::RETURN_ADDRESS_ON_TOP };
    let rules = |cache: &CodeCache| {
        let table = cache.table().expect("blobs do not overlap");
        [code, code + 9, code + 15].map(|at| table.rule_at(at))
    };
    assert_eq!(rules(&cache), [Rule::UNSUPPORTED, body, Rule::UNSUPPORTED], "at its call alone");
    fake.write(code, &TEXT);
    assert_eq!(cache.update(&fake, false, 20), Some(true));
    assert_eq!(rules(&cache), [Rule::RETURN_ADDRESS_ON_TOP, body, Rule::RETURN_ADDRESS_ON_TOP]);
    assert_eq!(cache.update(&fake, false, 20), Some(false));
}

#[test]
fn what_has_changed_is_read_again() {
    let (fake, variables, kinds) = fake();
    let mut cache = read(&fake, &variables);
    assert_eq!(cache.update(&fake, false, 20), Some(false));
    assert_eq!(cache.update(&fake, true, 20), Some(false));
    // Another method of the same size.
    fake.write(CODE, &block(kinds[0], FRAME / 8, CODE, 2));
    fake.write(POOL + 0x202, b"count");
    assert_eq!(cache.update(&fake, false, 20), Some(false));
    assert_eq!(cache.update(&fake, true, 20), Some(true));
    assert_eq!(names(&mut cache, &fake, CODE + BLOCK + HEAD + 12), ["int shop.Orders.count(long)"]);
    // A method that is freed, whose block waits for another one.
    fake.write(CODE + 8, &[0]);
    assert_eq!(names(&mut cache, &fake, CODE + BLOCK + HEAD + 12), [""; 0]);
    assert_eq!(cache.update(&fake, false, 20), Some(true), "asking for the name has shown it");
    fake.write(CODE + 8, &[1]);
    assert_eq!(cache.update(&fake, true, 20), Some(true));
    assert_eq!(cache.update(&fake, false, 20), Some(false));
    // One more block.
    let at = CODE + 2 * SEGMENT;
    fake.write(at, &block(kinds[2], 0, at, 0));
    fake.write(SEGMENTS, &[0, 1, 0, 1, 0, 1]);
    assert_eq!(cache.update(&fake, false, 20), Some(true));
    assert_eq!(names(&mut cache, &fake, at + BLOCK + HEAD), ["I2C/C2I adapters"]);
    // And one that is gone.
    fake.write(SEGMENTS, &[0xff, 0xff]);
    assert_eq!(cache.update(&fake, false, 20), Some(true));
    assert_eq!(names(&mut cache, &fake, CODE + BLOCK + HEAD + 12), [""; 0]);
}

/// A place in code that was there before has no name of the code that is there now.
#[test]
fn code_has_the_names_of_its_own_time_only() {
    let (fake, variables, kinds) = fake();
    let mut cache = CodeCache::new(&fake, &variables).expect("it describes all that is needed");
    let place = CODE + BLOCK + HEAD + 12;
    let has_name = |cache: &mut CodeCache, place, time| {
        let found = cache.functions_at(&fake, place, time);
        found.map(|functions| functions.len() == 1)
    };
    cache.update(&fake, true, 10);
    assert_eq!(has_name(&mut cache, place, 0), Some(true), "it may have been there long before");
    cache.update(&fake, true, 20);
    fake.write(CODE, &block(kinds[0], FRAME / 8, CODE, 2));
    let found = [19, 20, 25].map(|time| has_name(&mut cache, place, time));
    assert_eq!(found, [None, Some(true), Some(true)], "another method, met by a question");
    cache.update(&fake, true, 30);
    assert_eq!(has_name(&mut cache, place, 20), Some(true), "read once more, it is the same");
    fake.write(CODE, &block(kinds[0], FRAME / 8, CODE, 3));
    cache.update(&fake, true, 40);
    assert_eq!([29, 30].map(|time| has_name(&mut cache, place, time)), [None, Some(true)]);
    // A new block.
    let at = CODE + 2 * SEGMENT;
    fake.write(at, &block(kinds[2], 0, at, 0));
    fake.write(SEGMENTS, &[0, 1, 0, 1, 0, 1]);
    cache.update(&fake, false, 50);
    assert_eq!([39, 40].map(|time| has_name(&mut cache, at + BLOCK + HEAD, time)), [None, Some(true)]);
}

#[test]
fn frame_pointers_lead_on_where_the_machine_keeps_them() {
    let (fake, variables, _) = fake();
    let cache = read(&fake, &variables);
    let end = CODE + MAP.len() as u64 * SEGMENT;
    assert_eq!(cache.spans(), [CodeSpan { start: CODE, end, reserved_end: end + RESERVED }]);
    assert!(!cache.keeps_fp());
    fake.write(FLAGS + 65, &[1]);
    let cache = read(&fake, &variables);
    assert!(cache.keeps_fp());
    assert_eq!(cache.table().map(|table| table.rule_at(CODE + 1)), Some(Rule::UNCOVERED));
}

#[test]
fn stubs_have_the_frames_of_their_kind() {
    for (name, expected) in [
        ("StubRoutines (1)", Some(RuleKind::Sp)),
        ("Stub Generator final_blob", Some(RuleKind::Sp)),
        ("StubRoutines (continuation stubs)", Some(RuleKind::Unsupported)),
        ("vtable chunks", Some(RuleKind::Sp)),
        ("I2C/C2I adapters", Some(RuleKind::Unsupported)),
    ] {
        let (fake, variables, _) = fake();
        let at = CODE + 2 * SEGMENT;
        fake.put(STRINGS - 64, [name.as_bytes(), &[0; 64]].concat()[..64].to_vec());
        fake.write(at, &block(STRINGS - 64, 0, at, 0));
        fake.write(SEGMENTS, &[0, 1, 0, 1, 0, 1]);
        let table = read(&fake, &variables).table();
        let found = table.map(|table| table.rule_at(at + BLOCK + HEAD + 8).kind);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn stubs_are_followed_before_and_behind_their_frame() {
    let (fake, variables, _) = fake();
    let at = CODE + 2 * SEGMENT;
    fake.put(STRINGS - 64, [&b"StubRoutines (1)"[..], &[0; 48]].concat());
    fake.write(at, &block(STRINGS - 64, 0, at, 0));
    fake.write(SEGMENTS, &[0, 1, 0, 1, 0, 1]);
    let code = at + BLOCK + HEAD;
    let rules_of = |text: [u8; 16]| {
        fake.write(code, &text);
        let table = read(&fake, &variables).table().expect("blobs do not overlap");
        [0, 4, 14].map(|at| table.rule_at(code + at)).map(|rule| (rule.kind, rule.cfa_offset, rule.fp))
    };
    // push %rbp; mov %rsp,%rbp; sub $0x10,%rsp; call; leave; ret
    let text = [0x55, 0x48, 0x8b, 0xec, 0x48, 0x83, 0xec, 0x10, 0xe8, 0x40, 0, 0, 0, 0xc9, 0xc3, 0x90];
    assert_eq!(rules_of(text), [(RuleKind::Sp, 8, 0), (RuleKind::Fp, 16, -2), (RuleKind::Sp, 8, 0)]);
    // No instruction.
    assert_eq!(rules_of([0x06; 16]), [(RuleKind::Fp, 16, -2); 3]);
}

#[test]
fn blobs_that_overlap_or_leave_their_heap_have_no_rules_twice() {
    let (fake, variables, _) = fake();
    let far = CODE + MAP.len() as u64 * SEGMENT;
    // The end of the method's code: in the interpreter's, then behind the heap.
    for (end, functions) in [(CODE + 5 * SEGMENT, 1), (far + 1, 0)] {
        fake.write(CODE + BLOCK + 32, &end.to_le_bytes());
        let mut cache = read(&fake, &variables);
        assert_eq!(names(&mut cache, &fake, CODE + BLOCK + HEAD + 12).len(), functions);
        assert!(cache.table().is_some());
    }
}

#[test]
fn machine_that_has_not_started_has_no_code_yet() {
    let (fake, variables, _) = fake();
    fake.write(HEAPS, &0u64.to_le_bytes());
    let mut cache = CodeCache::new(&fake, &variables).expect("it describes all that is needed");
    assert_eq!(cache.update(&fake, true, 20), Some(false));
    assert_eq!(cache.table().map(|table| table.pages().len()), Some(0));
    fake.write(HEAPS, &(HEAPS + 64).to_le_bytes());
    assert_eq!(cache.update(&fake, false, 20), Some(true));
}

#[test]
fn other_version_or_memory_that_is_gone() {
    let (fake, variables, _) = fake();
    assert!(CodeCache::new(&fake, &[0; VARIABLES.len()]).is_none());
    assert!(CodeCache::new(&Fake::default(), &variables).is_none());
    let mut cache = read(&fake, &variables);
    assert_eq!(cache.update(&Fake::default(), true, 20), None);
    fake.words(STRUCTS, &[0; 6]);
    assert!(CodeCache::new(&fake, &variables).is_none(), "it describes nothing");
}

/// Whatever the memory contains, reading it ends.
#[test]
fn any_memory_is_harmless() {
    let mut drawn = 7u64;
    let mut draw = move || {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        drawn >> 33
    };
    for _ in 0..3_000 {
        let (fake, variables, _) = fake();
        for _ in 0..1 + draw() % 4 {
            let pieces: Vec<(u64, usize)> =
                fake.0.borrow().iter().map(|(at, bytes)| (*at, bytes.len())).collect();
            let (at, len) = pieces[draw() as usize % pieces.len()];
            let value = [0, 1, 0x7f, 0x80, 0xff, draw() as u8][draw() as usize % 6];
            fake.write(at + draw() % len as u64, &[value]);
        }
        if let Some(mut cache) = CodeCache::new(&fake, &variables) {
            cache.update(&fake, true, 20);
            cache.update(&fake, false, 20);
            cache.table();
            for at in (0..MAP.len() as u64 * SEGMENT).step_by(16) {
                cache.functions_at(&fake, CODE + at, 20);
            }
            cache.interpreted(&fake, METHOD);
        }
    }
}
