// SPDX-License-Identifier: Apache-2.0
//! The code of the recorded programs for the decoder: bytes and functions by space and address.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use wallprof_intel_pt::{Code, Function, FunctionId, SpaceId};
use wallprof_model::{Frame, FrameKind, ModuleId};
use wallprof_symbols::{FunctionTable, ResolverOptions, StoredProcesses};

use super::Prepared;
use super::decoding::LinkageStubs;
use super::filters::Filters;
use super::image::{Bytes, Image};
use super::jit::DumpFile;
use super::kernel::{self, Kernel};
use super::spaces::{Origin, Region, Spaces};

/// Spaces, the files mapped in them, and the kernel. A file is opened at the first request for one of its
/// addresses.
pub(crate) struct Programs<'a> {
    spaces: &'a Spaces,
    filters: &'a Filters,
    processes: &'a StoredProcesses,
    options: ResolverOptions,
    kernel: Kernel,
    images: Vec<OnceLock<Image>>,
    dumps: Vec<(Image, &'a DumpFile)>,
    next_id: AtomicU32,
}

/// The place and name of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    Known(Frame),
    /// Code that was made at run time. `number` is unique to this function.
    Made {
        address: u64,
        name: &'a str,
        number: u32,
    },
}

impl<'a> Programs<'a> {
    pub(crate) fn new(
        prepared: &'a Prepared,
        processes: &'a StoredProcesses,
        options: ResolverOptions,
        kernel: Kernel,
    ) -> Self {
        let Prepared { spaces, filters, dumps, .. } = prepared;
        let mut images = Vec::new();
        images.resize_with(processes.modules(), OnceLock::new);
        // Id 0 is that of unknown functions.
        let next_id = AtomicU32::new(1);
        let mut programs =
            Programs { spaces, filters, processes, options, kernel, images, dumps: Vec::new(), next_id };
        programs.dumps = dumps.iter().map(|dump| (programs.image_of_dump(dump), dump)).collect();
        programs
    }

    /// Functions of a dump are identified by the offsets of their bytes in the file.
    fn image_of_dump(&self, dump: &DumpFile) -> Image {
        let extents = dump.loads.iter().map(|load| (load.offset, load.offset + load.size));
        let functions = FunctionTable::of_extents(extents);
        let bytes = Bytes::of(Some(Arc::clone(&dump.file)));
        match self.take_ids(functions.len() as u32) {
            Some(first_id) => Image { bytes, functions, first_id },
            None => Image { bytes, ..Image::default() },
        }
    }

    /// The entry of a function.
    pub(crate) fn entry(&self, id: FunctionId) -> Option<Entry<'a>> {
        if id.0 >= kernel::FIRST_ID {
            let address = self.kernel.entry(id)?;
            return Some(Entry::Known(Frame { kind: FrameKind::Kernel, module: None, address }));
        }
        self.made(id).or_else(|| self.frame_in_module(id).map(Entry::Known))
    }

    fn made(&self, id: FunctionId) -> Option<Entry<'a>> {
        self.dumps.iter().filter(|(image, _)| image.first_id != 0).find_map(|(image, dump)| {
            let load = dump.loads.get(id.0.checked_sub(image.first_id)? as usize)?;
            Some(Entry::Made { address: load.address, name: &load.name, number: id.0 })
        })
    }

    fn frame_in_module(&self, id: FunctionId) -> Option<Frame> {
        let known = self.images.iter().enumerate().filter_map(|(index, image)| Some((index, image.get()?)));
        let mut numbered = known.filter_map(|(index, image)| {
            let number = id.0.checked_sub(image.first_id)? as usize;
            Some((index, image.functions.entry(number).filter(|_| image.first_id != 0)?))
        });
        let (index, address) = numbered.next()?;
        Some(Frame { kind: FrameKind::Native, module: Some(ModuleId(index as u32)), address })
    }

    /// The frame of an address without a function.
    pub(crate) fn frame_of_address(&self, space: SpaceId, address: u64) -> Frame {
        if address >> 63 != 0 {
            return Frame { kind: FrameKind::Kernel, module: None, address };
        }
        match self.spaces.region(space, address) {
            Some(&Region { origin: Origin::Module(module), bias, .. }) => {
                Frame { kind: FrameKind::Native, module: Some(module), address: address.wrapping_add(bias) }
            }
            Some(_) => Frame { kind: FrameKind::Jit, module: None, address },
            None => Frame { kind: FrameKind::Native, module: None, address },
        }
    }

    fn image(&self, region: &Region) -> Option<&Image> {
        let module = match region.origin {
            Origin::Dump(number) => return self.dumps.get(number as usize).map(|(image, _)| image),
            Origin::Module(module) => module,
        };
        let slot = self.images.get(module.0 as usize)?;
        Some(slot.get_or_init(|| {
            Image::new(self.processes.module_file(module), &self.options, |count| self.take_ids(count))
        }))
    }

    /// Reserves `count` ids; returns the first.
    fn take_ids(&self, count: u32) -> Option<u32> {
        let next = |first: u32| first.checked_add(count).filter(|&next| next <= kernel::FIRST_ID);
        self.next_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }
}

impl LinkageStubs for Programs<'_> {
    fn is_stub(&self, function: FunctionId) -> bool {
        let images = self.images.iter().filter_map(OnceLock::get).filter(|image| image.first_id != 0);
        let mut numbered = images.filter_map(|image| {
            let number = function.0.checked_sub(image.first_id)? as usize;
            (number < image.functions.len()).then(|| image.functions.is_stub(number))
        });
        numbered.next().unwrap_or(false)
    }
}

impl Code for Programs<'_> {
    fn bytes(&self, space: SpaceId, address: u64) -> Option<&[u8]> {
        if space == SpaceId::KERNEL {
            return self.kernel.bytes(address);
        }
        let region = self.spaces.region(space, address)?;
        self.image(region)?.bytes.at(address.wrapping_add(region.to_offset), region.end - address)
    }

    fn function(&self, space: SpaceId, address: u64) -> Option<Function> {
        if space == SpaceId::KERNEL || address >> 63 != 0 {
            return self.kernel.function(address);
        }
        let region = self.spaces.region(space, address)?;
        let image = self.image(region)?;
        let number = image.functions.at(address.wrapping_add(region.bias))?;
        let entry = image.functions.entry(number)?;
        Some(Function {
            id: FunctionId(image.first_id + number as u32),
            entry: entry.wrapping_sub(region.bias),
        })
    }

    fn is_filtered(&self) -> bool {
        !self.filters.is_empty()
    }

    fn is_left_out(&self, space: SpaceId, address: u64) -> bool {
        if space == SpaceId::KERNEL {
            return self.filters.leave_out_kernel(address);
        }
        let region = self.spaces.region(space, address);
        let mapped = region.map(|region| (region.origin, address.wrapping_add(region.to_offset)));
        self.filters.leave_out_user(mapped)
    }
}
