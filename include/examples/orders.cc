// SPDX-License-Identifier: Apache-2.0 OR MIT
// The same in C++: c++ -O2 -I include include/examples/orders.cc -o orders
#include <wallprof.h>

#include <chrono>
#include <random>
#include <thread>

namespace {

volatile unsigned long book[4096];

void check_risk(std::minstd_rand &random) {
    wallprof::span stage{"risk check"};
    for (int i = 0; i < 20000; i++)
        book[i % 4096] = book[i % 4096] + static_cast<unsigned long>(i);
    if (random() % 200 == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

void handle_order(std::minstd_rand &random) {
    wallprof::span order{"order"};
    check_risk(random);
    wallprof::span stage{"match"};
    for (int i = 0; i < 10000; i++)
        book[i % 4096] = book[i % 4096] ^ static_cast<unsigned long>(i);
}

} // namespace

int main() {
    std::minstd_rand random;
    for (;;) {
        handle_order(random);
        std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
}
