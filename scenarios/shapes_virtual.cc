// SPDX-License-Identifier: Apache-2.0
// The C++ part of shapes: methods that call each other through their class' table.

#include <cstdint>

#define OPAQUE __attribute__((noipa))

typedef uint64_t inner_function(uint64_t);

struct Shape {
    virtual uint64_t visit(unsigned long depth) = 0;
    virtual ~Shape() {}
    Shape *volatile next = nullptr;
    inner_function *volatile inner = nullptr;
};

struct Circle : Shape {
    OPAQUE uint64_t visit(unsigned long depth) override { return next->visit(depth + 1) + 1; }
};

struct Square : Shape {
    OPAQUE uint64_t visit(unsigned long depth) override {
        volatile uint64_t room[12];
        room[depth % 12] = depth;
        return next->visit(depth + 1) + room[depth % 12];
    }
};

template <int N> struct Ring : Shape {
    OPAQUE uint64_t visit(unsigned long depth) override { return inner(depth + N) + 1; }
};

extern "C" OPAQUE uint64_t visit_all(uint64_t depth, inner_function *inner) {
    static Circle circle;
    static Square square;
    static Ring<3> ring;
    circle.next = &square;
    square.next = &ring;
    ring.inner = inner;
    Shape *volatile first = &circle;
    return first->visit(depth) + 1;
}
