/* SPDX-License-Identifier: Apache-2.0 */
// The functions of liblazy.so, which scenario `loader` calls for the first time one by one.
#pragma once

#include <stdint.h>

#define LAZY_8(each, tens)                                                                                   \
    each(lazy_##tens##0) each(lazy_##tens##1) each(lazy_##tens##2) each(lazy_##tens##3) each(lazy_##tens##4) \
        each(lazy_##tens##5) each(lazy_##tens##6) each(lazy_##tens##7)
#define LAZY_FUNCTIONS(each)                                                                                 \
    LAZY_8(each, )                                                                                           \
    LAZY_8(each, 1)                                                                                          \
    LAZY_8(each, 2) LAZY_8(each, 3) LAZY_8(each, 4) LAZY_8(each, 5) LAZY_8(each, 6) LAZY_8(each, 7)

#define DECLARE(name) uint64_t name(void);
LAZY_FUNCTIONS(DECLARE)
