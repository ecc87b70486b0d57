/* SPDX-License-Identifier: Apache-2.0 */
/* libbpf's header of the same name, for the host: a program of a tracepoint takes an array of its arguments.
 */
#pragma once

#define CONTEXT_0(...) context
#define CONTEXT_1(a) context, context[0]
#define CONTEXT_2(a, b) context, context[0], context[1]
#define CONTEXT_3(a, b, c) context, context[0], context[1], context[2]
#define CONTEXT_4(a, b, c, d) context, context[0], context[1], context[2], context[3]
#define CONTEXT_5(a, b, c, d, e) context, context[0], context[1], context[2], context[3], context[4]
#define CONTEXT_OF(_0, _1, _2, _3, _4, _5, NAME, ...) NAME
#define CONTEXT(...)                                                                                         \
    CONTEXT_OF(_0, ##__VA_ARGS__, CONTEXT_5, CONTEXT_4, CONTEXT_3, CONTEXT_2, CONTEXT_1, CONTEXT_0)          \
    (__VA_ARGS__)

#define BPF_PROG(name, ...)                                                                                  \
    name(unsigned long long *context);                                                                       \
    static int body_of_##name(unsigned long long *ctx, ##__VA_ARGS__);                                       \
    int name(unsigned long long *context) { return body_of_##name(CONTEXT(__VA_ARGS__)); }                   \
    static int body_of_##name(unsigned long long *ctx, ##__VA_ARGS__)
