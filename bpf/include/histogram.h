/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Log-linear buckets, 16 an octave: the same index as crates/model/src/histogram.rs, which a test
 * compares. */
#pragma once

/* The position of the highest set bit, by a De Bruijn sequence. BPF has no such instruction before v4, and
 * branches multiply the paths that the verifier walks. */
#define HIGHEST_BIT_SEQUENCE 0x03f79d71b4cb0a89ULL

static const unsigned char highest_bit_table[64] = {
    0,  47, 1,  56, 48, 27, 2,  60, 57, 49, 41, 37, 28, 16, 3,  61, 54, 58, 35, 52, 50, 42,
    21, 44, 38, 32, 29, 23, 17, 11, 4,  62, 46, 55, 26, 59, 40, 36, 15, 53, 34, 51, 20, 43,
    31, 22, 10, 45, 25, 39, 14, 33, 19, 30, 9,  24, 13, 18, 8,  12, 7,  6,  5,  63,
};

static inline __attribute__((always_inline)) unsigned int highest_bit(unsigned long long value) {
    value |= value >> 1;
    value |= value >> 2;
    value |= value >> 4;
    value |= value >> 8;
    value |= value >> 16;
    value |= value >> 32;
    return highest_bit_table[(value * HIGHEST_BIT_SEQUENCE) >> 58];
}

static inline __attribute__((always_inline)) unsigned int bucket_from_ns(unsigned long long ns) {
    unsigned int exponent;

    if (ns < 16)
        return (unsigned int)ns;
    exponent = highest_bit(ns);
    return (exponent - 3) * 16 + (unsigned int)((ns >> (exponent - 4)) & 15);
}
