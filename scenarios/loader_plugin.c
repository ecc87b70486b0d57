// SPDX-License-Identifier: Apache-2.0
// libplugin.so of scenario `loader`.

#include <stdint.h>

#define OPAQUE __attribute__((noipa))

uint64_t plugin_work(uint64_t (*inner)(uint64_t));

OPAQUE static uint64_t plugin_inner(uint64_t (*inner)(uint64_t), uint64_t depth) {
    volatile uint64_t room[40];
    room[depth % 40] = depth;
    return inner(depth + 1) + room[depth % 40];
}

OPAQUE uint64_t plugin_work(uint64_t (*inner)(uint64_t)) { return plugin_inner(inner, 1) + 1; }
