/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Interrupt vectors with tracepoints of their own (irq_vectors:*): most interrupts of a virtual machine.
 * The number is the one in interrupt_key; crates/probe names them by the same list. Vectors that report
 * hardware errors are left out: their time is not worth a program. */
#pragma once

#define FOR_EACH_VECTOR(X)                                                                                   \
    X(0, local_timer)                                                                                        \
    X(1, reschedule)                                                                                         \
    X(2, call_function)                                                                                      \
    X(3, call_function_single)                                                                               \
    X(4, irq_work)                                                                                           \
    X(5, x86_platform_ipi)

#define VECTOR_LOCAL_TIMER 0
