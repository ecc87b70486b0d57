/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Reasons of blocked time, each declared once: the number in records and in recordings, the name, and whether
 * a thread enters such a wait voluntarily. crates/model generates its `Reason` from this list, and the
 * recording's SQL from that. Append; never reorder. */
#pragma once

#define INVOLUNTARY 0
#define VOLUNTARY 1

#define FOR_EACH_REASON(X)                                                                                   \
    X(0, LOCK, INVOLUNTARY)                                                                                  \
    X(1, WAIT, VOLUNTARY)                                                                                    \
    X(2, DISK, INVOLUNTARY)                                                                                  \
    X(3, NETWORK, INVOLUNTARY)                                                                               \
    X(4, POLL, VOLUNTARY)                                                                                    \
    X(5, SLEEP, VOLUNTARY)                                                                                   \
    X(6, PIPE, INVOLUNTARY)                                                                                  \
    X(7, IPC, INVOLUNTARY)                                                                                   \
    X(8, CHILD, VOLUNTARY)                                                                                   \
    X(9, MEMORY, INVOLUNTARY)                                                                                \
    X(10, STOPPED, INVOLUNTARY)                                                                              \
    X(11, OTHER, INVOLUNTARY)

#define REASON_ENUMERATOR(number, name, voluntary) REASON_##name = number,
#define REASON_ONE(number, name, voluntary) +1
#define REASON_BIT(number, name, voluntary) | (1 << number)
#define REASON_VOLUNTARY_BIT(number, name, voluntary) | (voluntary << number)

enum reason { FOR_EACH_REASON(REASON_ENUMERATOR) };

enum {
    REASONS = FOR_EACH_REASON(REASON_ONE),
    /* By number, a bit each. */
    VOLUNTARY_REASONS = 0 FOR_EACH_REASON(REASON_VOLUNTARY_BIT),
};

_Static_assert((0 FOR_EACH_REASON(REASON_BIT)) == (1 << REASONS) - 1, "numbers of reasons have no gaps");
