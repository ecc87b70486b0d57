/* SPDX-License-Identifier: Apache-2.0 */
/* libbpf's header of the same name, for the host: the kernel's types are those of bpf/include/kernel.h, and a
 * read of a kernel object is a load. */
#pragma once

/* A NULL on the way gives zero, as in the kernel. */
#define READ_FIELD(from, field)                                                                              \
    ({                                                                                                       \
        __typeof__(from) from_ = (from);                                                                     \
        __typeof__((from)->field) value_;                                                                    \
        __builtin_memset(&value_, 0, sizeof(value_));                                                        \
        if (from_)                                                                                           \
            value_ = from_->field;                                                                           \
        value_;                                                                                              \
    })
#define CORE_READ_1(from, a) READ_FIELD(from, a)
#define CORE_READ_2(from, a, b) READ_FIELD(CORE_READ_1(from, a), b)
#define CORE_READ_3(from, a, b, c) READ_FIELD(CORE_READ_2(from, a, b), c)
#define CORE_READ_4(from, a, b, c, d) READ_FIELD(CORE_READ_3(from, a, b, c), d)
#define CORE_READ_5(from, a, b, c, d, e) READ_FIELD(CORE_READ_4(from, a, b, c, d), e)
#define CORE_READ_OF(_1, _2, _3, _4, _5, NAME, ...) NAME
#define BPF_CORE_READ(from, ...)                                                                             \
    CORE_READ_OF(__VA_ARGS__, CORE_READ_5, CORE_READ_4, CORE_READ_3, CORE_READ_2, CORE_READ_1)               \
    (from, __VA_ARGS__)
#define BPF_CORE_READ_BITFIELD(from, field) ((from)->field)
#define BPF_CORE_READ_BITFIELD_PROBED(from, field) ((from)->field)

#define bpf_core_read(to, len, from) bpf_probe_read_kernel(to, len, from)
/* The fields of the newest kernel whose types kernel.h has in full. */
#define bpf_core_field_exists(...) (__builtin_strcmp(#__VA_ARGS__, "newer->futex") != 0)
#define bpf_core_type_exists(type) 0
#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)
#define bpf_core_type_size(type) sizeof(type)
#define bpf_core_enum_value(type, value) value
