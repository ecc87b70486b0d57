/* Log-linear buckets, 16 an octave: the same index as crates/model/src/histogram.rs (a test compares them).
 */
#pragma once

static inline __attribute__((always_inline)) unsigned int bucket_from_ns(unsigned long long ns) {
    unsigned int exponent = 0;
    unsigned long long rest = ns;

    if (ns < 16)
        return (unsigned int)ns;
    /* No clz before BPF v4: five halvings. */
    if (rest >> 32) {
        exponent += 32;
        rest >>= 32;
    }
    if (rest >> 16) {
        exponent += 16;
        rest >>= 16;
    }
    if (rest >> 8) {
        exponent += 8;
        rest >>= 8;
    }
    if (rest >> 4) {
        exponent += 4;
        rest >>= 4;
    }
    if (rest >> 2) {
        exponent += 2;
        rest >>= 2;
    }
    exponent += (unsigned int)(rest >> 1);
    return (exponent - 3) * 16 + (unsigned int)((ns >> (exponent - 4)) & 15);
}
