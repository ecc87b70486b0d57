/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The kernel's names of integers, for headers that are compiled for BPF and for the host. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short s16;
typedef int s32;
typedef long long s64;
