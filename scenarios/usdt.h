// SPDX-License-Identifier: Apache-2.0
// USDT_PROBE(PROVIDER, NAME): a statically defined tracepoint without arguments, as programs get it from
// SystemTap's sys/sdt.h. It is a nop, and a note that says where the nop is: type 3 of owner `stapsdt`, with
// the addresses of the nop, of section .stapsdt.base at link time, and of a counter (none), then three texts:
// provider, name, arguments.
#pragma once

#define USDT_PROBE(provider, name)                                                                           \
    __asm__ volatile("1: nop\n"                                                                              \
                     ".pushsection .note.stapsdt, \"\", @note\n"                                             \
                     ".balign 4\n"                                                                           \
                     ".4byte 3f - 2f, 5f - 4f, 3\n"                                                          \
                     "2: .asciz \"stapsdt\"\n"                                                               \
                     "3: .balign 4\n"                                                                        \
                     "4: .8byte 1b, _.stapsdt.base, 0\n"                                                     \
                     ".asciz \"" provider "\", \"" name "\", \"\"\n"                                         \
                     "5: .balign 4\n"                                                                        \
                     ".popsection\n"                                                                         \
                     ".ifndef _.stapsdt.base\n"                                                              \
                     ".pushsection .stapsdt.base, \"a\", @progbits\n"                                        \
                     "_.stapsdt.base: .byte 0\n"                                                             \
                     ".popsection\n"                                                                         \
                     ".endif\n")
