//! The recorded programs, as the decoder asks for them: bytes and functions by space and address.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use wallprof_intel_pt::{Code, Function, FunctionId, SpaceId};
use wallprof_model::{Frame, FrameKind, ModuleId};
use wallprof_symbols::{ResolverOptions, StoredProcesses};

use super::image::Image;
use super::kernel::{self, Kernel};
use super::spaces::{Region, Spaces};

/// Spaces, the files mapped in them, and the kernel. Files are opened when the first address in them is asked for.
pub(crate) struct Programs<'a> {
    spaces: &'a Spaces,
    processes: &'a StoredProcesses,
    options: ResolverOptions,
    kernel: Kernel,
    images: Vec<OnceLock<Image>>,
    next_id: AtomicU32,
}

impl<'a> Programs<'a> {
    pub(crate) fn new(
        spaces: &'a Spaces,
        processes: &'a StoredProcesses,
        options: ResolverOptions,
        kernel: Kernel,
    ) -> Self {
        let mut images = Vec::new();
        images.resize_with(processes.modules(), OnceLock::new);
        // Id 0 is that of unknown functions.
        Programs { spaces, processes, options, kernel, images, next_id: AtomicU32::new(1) }
    }

    /// The entry of a function, as a frame.
    pub(crate) fn frame_of_function(&self, id: FunctionId) -> Option<Frame> {
        if id.0 >= kernel::FIRST_ID {
            let address = self.kernel.entry(id)?;
            return Some(Frame { kind: FrameKind::Kernel, module: None, address });
        }
        let known = self.images.iter().enumerate().filter_map(|(index, image)| Some((index, image.get()?)));
        let mut numbered = known.filter_map(|(index, image)| {
            let number = id.0.checked_sub(image.first_id)? as usize;
            Some((index, image.functions.entry(number).filter(|_| image.first_id != 0)?))
        });
        let (index, address) = numbered.next()?;
        Some(Frame { kind: FrameKind::Native, module: Some(ModuleId(index as u32)), address })
    }

    /// An address without a function.
    pub(crate) fn frame_of_address(&self, space: SpaceId, address: u64) -> Frame {
        if address >> 63 != 0 {
            return Frame { kind: FrameKind::Kernel, module: None, address };
        }
        match self.spaces.region(space, address) {
            Some(region) => {
                let address = address.wrapping_add(region.bias);
                Frame { kind: FrameKind::Native, module: Some(region.module), address }
            }
            None => Frame { kind: FrameKind::Native, module: None, address },
        }
    }

    fn image(&self, region: &Region) -> Option<&Image> {
        let slot = self.images.get(region.module.0 as usize)?;
        Some(slot.get_or_init(|| {
            Image::new(self.processes.module_file(region.module), &self.options, |count| self.take_ids(count))
        }))
    }

    /// The first of `count` ids that are nobody else's.
    fn take_ids(&self, count: u32) -> Option<u32> {
        let next = |first: u32| first.checked_add(count).filter(|&next| next <= kernel::FIRST_ID);
        self.next_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
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
}
