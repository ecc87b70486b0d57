// SPDX-License-Identifier: Apache-2.0
// Busy, sorting and formatting: time in the program, libstdc++ and libc, with exceptions thrown and caught.

#include <algorithm>
#include <cstdint>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Order {
    std::string name;
    double price;
};

static uint64_t parse(const std::string &text) {
    static const std::regex form("([a-z]+)-([0-9]+)");
    std::smatch match;
    if (!std::regex_match(text, match, form))
        throw std::invalid_argument(text);
    return std::stoull(match[2]);
}

static uint64_t total(const std::vector<Order> &orders) {
    uint64_t sum = 0;
    for (const Order &order : orders)
        try {
            sum += parse(order.name);
        } catch (const std::invalid_argument &error) {
            sum += std::string(error.what()).size();
        }
    return sum;
}

int main() {
    uint64_t seed = 42, sum = 0;
    for (;;) {
        std::vector<Order> orders;
        std::map<std::string, double> book;
        for (int i = 0; i < 300; i++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            std::ostringstream name;
            name << (seed >> 63 ? "order-" : "Order_") << (seed >> 40);
            orders.push_back({name.str(), double(seed >> 32)});
            book[orders.back().name] += orders.back().price;
        }
        std::sort(orders.begin(), orders.end(), [](const Order &a, const Order &b) { return a.name < b.name; });
        sum += total(orders) + book.size();
        static volatile uint64_t sink;
        sink = sum;
    }
}
