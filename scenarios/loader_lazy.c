// SPDX-License-Identifier: Apache-2.0
// liblazy.so of scenario `loader`.

#include "loader_lazy.h"

#define DEFINE(name)                                                                                         \
    uint64_t name(void) { return (uintptr_t)&name; }
LAZY_FUNCTIONS(DEFINE)
