// SPDX-License-Identifier: Apache-2.0
// The libraries of scenario `traces`, each of which publishes threads' traces: they differ in how their code
// finds the variable (flags in the Makefile), and so in what the dynamic linker writes down of it.

#include "traces_context.h"

#ifdef PADDING
// More than the dynamic linker has left beside a thread's pointer to itself: the block is allocated when the
// thread first uses it.
__thread char padding[PADDING];
#endif

__thread struct trace_record *otel_thread_ctx_v1;

void attach(struct trace_record *record) {
#ifdef PADDING
    padding[0]++;
#endif
    otel_thread_ctx_v1 = record;
}
