// SPDX-License-Identifier: Apache-2.0
//! Where the fields of the virtual machine's structures lie, by its own description.
//!
//! The tables are arrays of entries up to one without a type name. Where the members of an entry lie is in exported
//! variables, too.

use std::collections::HashMap;

use crate::memory::{Memory, bytes, half, text, word};

/// The exported variables that are needed, each of 8 bytes.
pub const VARIABLES: [&str; 12] = [
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryTypeStringOffset",
    "gHotSpotVMStructEntryIsStaticOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryAddressOffset",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
    "gHotSpotVMTypeEntryArrayStride",
];

/// Their addresses in the process, in the same order.
pub type Variables = [u64; VARIABLES.len()];

/// JDK 17 has 788 fields.
const MOST_ENTRIES: u64 = 8_192;
/// JDK 25 has some 1,400.
const MOST_OPTIONS: u64 = 8_192;
/// An entry has 48 bytes.
const MOST_STRIDE: u64 = 256;
/// The longest name that is looked for is shorter.
const MOST_NAME: usize = 48;

/// A field in a structure, or a static one at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// From the start of the structure; of a static field, its address.
    pub at: u64,
    bytes: usize,
    is_signed: bool,
}

impl Field {
    /// Its value in the structure whose bytes these are.
    pub fn of(self, structure: &[u8]) -> Option<u64> {
        let at = usize::try_from(self.at).ok()?;
        let mut value = [0; 8];
        value[..self.bytes].copy_from_slice(structure.get(at..at.checked_add(self.bytes)?)?);
        let value = u64::from_le_bytes(value);
        let unused = 64 - 8 * self.bytes as u32;
        Some(if self.is_signed { ((value << unused).cast_signed() >> unused).cast_unsigned() } else { value })
    }

    /// Its value in the structure at `address`.
    pub fn read(self, memory: &dyn Memory, address: u64) -> Option<u64> {
        let mut value = [0; 8];
        let value = &mut value[..self.bytes];
        let is_read = memory.read(address.checked_add(self.at)?, value);
        is_read.then(|| Field { at: 0, ..self }.of(value)).flatten()
    }

    pub fn end(self) -> u64 {
        self.at.saturating_add(self.bytes as u64)
    }
}

fn field(at: u64, type_name: &str) -> Field {
    let (bytes, is_signed) = match type_name {
        "u1" | "uint8_t" | "jubyte" | "unsigned char" | "bool" | "jboolean" | "CodeBlobKind" => (1, false),
        "int8_t" | "jbyte" | "char" | "signed char" => (1, true),
        "u2" | "uint16_t" | "jushort" | "jchar" | "unsigned short" => (2, false),
        "int16_t" | "jshort" | "short" => (2, true),
        "u4" | "uint32_t" | "unsigned int" | "unsigned" | "juint" => (4, false),
        "int" | "int32_t" | "jint" => (4, true),
        _ => (8, false),
    };
    Field { at, bytes, is_signed }
}

/// What is needed of the virtual machine's structures.
#[derive(Debug)]
pub(crate) struct Layout {
    fields: HashMap<(&'static str, &'static str), Field>,
    sizes: HashMap<&'static str, u64>,
}

/// The fields of each structure. Not every version has all.
const FIELDS: [(&str, &[&str]); 20] = [
    ("CodeCache", &["_heaps"]),
    ("GrowableArrayBase", &["_len"]),
    ("GrowableArray<int>", &["_data"]),
    ("CodeHeap", &["_memory", "_segmap", "_log2_segment_size"]),
    ("VirtualSpace", &["_low", "_high", "_high_boundary"]),
    ("HeapBlock", &["_header"]),
    ("HeapBlock::Header", &["_length", "_used"]),
    (
        "CodeBlob",
        &[
            "_name",
            "_frame_size",
            "_oop_maps",
            "_code_begin",
            "_code_end",
            "_code_offset",
            "_data_offset",
            "_mutable_data",
            "_relocation_size",
        ],
    ),
    ("CompiledMethod", &["_method", "_scopes_data_begin"]),
    (
        "nmethod",
        &[
            "_method",
            "_osr_entry_point",
            "_entry_bci",
            "_compile_id",
            "_immutable_data",
            "_scopes_data_begin",
            "_scopes_data_offset",
            "_scopes_pcs_offset",
            "_dependencies_offset",
            "_metadata_offset",
        ],
    ),
    ("PcDesc", &["_pc_offset", "_scope_decode_offset"]),
    ("ImmutableOopMapSet", &["_count"]),
    ("ImmutableOopMapPair", &["_pc_offset"]),
    ("Method", &["_constMethod"]),
    (
        "ConstMethod",
        &[
            "_constants",
            "_name_index",
            "_signature_index",
            "_flags",
            "_flags._flags",
            "_code_size",
            "_constMethod_size",
        ],
    ),
    ("ConstantPool", &["_pool_holder", "_source_file_name_index"]),
    ("Klass", &["_name"]),
    ("Symbol", &["_length", "_body"]),
    ("Abstract_VM_Version", &["_vm_major_version"]),
    ("JVMFlag", &["flags", "numFlags", "_name", "_addr"]),
];
const SIZES: [&str; 7] = [
    "HeapBlock",
    "ConstantPool",
    "ConstMethod",
    "ImmutableOopMapSet",
    "ImmutableOopMapPair",
    "JVMFlag",
    "PcDesc",
];

impl Layout {
    /// `None`: the description cannot be read.
    pub fn read(memory: &dyn Memory, variables: &Variables) -> Option<Layout> {
        let mut values = [0; VARIABLES.len()];
        for (value, &variable) in values.iter_mut().zip(variables) {
            *value = word(memory, variable)?;
        }
        let [structs, type_name, field_name, type_string, is_static, offset, address, stride, ..] = values;
        let [.., types, name, size, types_stride] = values;
        let mut layout = Layout { fields: HashMap::new(), sizes: HashMap::new() };
        for entry in entries(memory, structs, stride, type_name) {
            let entry = entry?;
            let name_at = |member: u64| text::<MOST_NAME>(memory, word_at(&entry, member)?);
            let Some((of, names)) =
                name_at(type_name).and_then(|name| FIELDS.iter().find(|known| known.0 == name))
            else {
                continue;
            };
            let Some(known) = name_at(field_name).and_then(|name| names.iter().find(|known| **known == name))
            else {
                continue;
            };
            let is_static = word_at(&entry, is_static)? as u32 != 0;
            let at = word_at(&entry, if is_static { address } else { offset })?;
            layout.fields.insert((of, known), field(at, &name_at(type_string).unwrap_or_default()));
        }
        for entry in entries(memory, types, types_stride, name) {
            let entry = entry?;
            let of = text::<MOST_NAME>(memory, word_at(&entry, name)?);
            if let Some(known) = of.and_then(|of| SIZES.iter().find(|known| **known == of)) {
                layout.sizes.insert(known, word_at(&entry, size)?);
            }
        }
        Some(layout)
    }

    pub fn field(&self, of: &'static str, name: &'static str) -> Option<Field> {
        self.fields.get(&(of, name)).copied()
    }

    /// The JDK's version, such as 17.
    pub fn version(&self, memory: &dyn Memory) -> Option<u64> {
        self.field("Abstract_VM_Version", "_vm_major_version")?.read(memory, 0)
    }

    /// The bytes of a structure.
    pub fn size(&self, of: &'static str) -> Option<u64> {
        self.sizes.get(of).copied()
    }
}

fn word_at(entry: &[u8], member: u64) -> Option<u64> {
    field(member, "").of(entry)
}

/// The entries of a table. `None`: one that cannot be read, the last.
fn entries<'m>(
    memory: &'m dyn Memory,
    table: u64,
    stride: u64,
    type_name: u64,
) -> impl Iterator<Item = Option<Vec<u8>>> + 'm {
    let mut is_over = false;
    (0..MOST_ENTRIES).map_while(move |index| {
        if is_over {
            return None;
        }
        let entry = bytes(memory, table.wrapping_add(index * stride), stride, MOST_STRIDE);
        is_over = entry.is_none();
        match &entry {
            Some(entry) if word_at(entry, type_name)? == 0 => None,
            _ => Some(entry),
        }
    })
}

/// The address of an array's first element, and the number of them.
pub(crate) fn growable_array(memory: &dyn Memory, layout: &Layout, array: u64) -> Option<(u64, u64)> {
    let len = layout.field("GrowableArrayBase", "_len")?.read(memory, array)?;
    Some((layout.field("GrowableArray<int>", "_data")?.read(memory, array)?, len))
}

/// The offsets from a blob's code at which it calls with a whole frame, ascending.
pub(crate) fn calls(memory: &dyn Memory, layout: &Layout, maps: u64, most: u64) -> Option<Vec<u64>> {
    if maps == 0 {
        return Some(Vec::new());
    }
    let count = layout.field("ImmutableOopMapSet", "_count")?;
    let count = u64::from(half(memory, maps.checked_add(count.at)?)?);
    let size = layout.size("ImmutableOopMapPair").filter(|&size| (4..=64).contains(&size))?;
    let pairs = maps.checked_add(layout.size("ImmutableOopMapSet")?)?;
    let pairs = bytes(memory, pairs, count.checked_mul(size)?, most.saturating_mul(size))?;
    let offset = layout.field("ImmutableOopMapPair", "_pc_offset")?;
    let mut calls: Vec<u64> = pairs.chunks(size as usize).filter_map(|pair| offset.of(pair)).collect();
    calls.sort_unstable();
    calls.dedup();
    Some(calls)
}

/// Whether this option of the virtual machine is on. `None`: it has no such option.
pub(crate) fn option(memory: &dyn Memory, layout: &Layout, wanted: &str) -> Option<bool> {
    let field = |name| layout.field("JVMFlag", name);
    let (flags, count) = (word(memory, field("flags")?.at)?, word(memory, field("numFlags")?.at)?);
    let size = layout.size("JVMFlag").filter(|size| (1..=MOST_STRIDE).contains(size))?;
    let (name, address) = (field("_name")?, field("_addr")?);
    let mut flags = (0..count.min(MOST_OPTIONS)).map(|index| flags.wrapping_add(index * size));
    let is_wanted = |&flag: &u64| {
        let name = name.read(memory, flag).and_then(|name| text::<MOST_NAME>(memory, name));
        name.is_some_and(|name| name == wanted)
    };
    let mut value = [0];
    memory.read(address.read(memory, flags.find(is_wanted)?)?, &mut value).then_some(value[0] != 0)
}
