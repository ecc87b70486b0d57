/* SPDX-License-Identifier: Apache-2.0 */
// What a thread publishes of the trace that it works for: OpenTelemetry's OTEP 4947.
#pragma once

#include <stdint.h>

struct trace_record {
    uint8_t trace_id[16];
    uint8_t span_id[8];
    uint8_t valid;
    uint8_t trace_flags;
    uint16_t attrs_data_size;
};

extern __thread struct trace_record *otel_thread_ctx_v1;

// Publishes a record of the calling thread; NULL: it works for no trace.
void attach(struct trace_record *record);
