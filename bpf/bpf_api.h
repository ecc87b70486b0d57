/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Every BPF file needs these: kernel types, libbpf's declarations, and inlining. */
#pragma once

#include "include/kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
/* A function that the verifier walks through once, and not for each path to each call; the result is any
 * number to it. Its arguments are numbers and pointers to memory of known size, which it checks for NULL.
 * Linux 6.1 takes no such memory for the key or the value of a map. */
#define GLOBAL __attribute__((noinline))
