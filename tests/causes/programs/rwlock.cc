// SPDX-License-Identifier: Apache-2.0
// Readers and a writer of one std::shared_mutex.
//
// usage: rwlock slow|quick SECONDS. With slow, the reader "report" keeps it for 20 ms, and the writer waits.
#include <pthread.h>

#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>

using clock_type = std::chrono::steady_clock;
using std::chrono::milliseconds;

static std::shared_mutex prices;
static long price;

[[gnu::noinline]] static void read_prices(milliseconds held)
{
    std::shared_lock lock(prices);
    asm volatile("" : : "r"(price) : "memory");
    std::this_thread::sleep_for(held);
}

[[gnu::noinline]] static void update_price()
{
    std::unique_lock lock(prices);
    price++;
}

int main(int, char **arguments)
{
    const bool slow = arguments[1] == std::string("slow");
    const auto ends = clock_type::now() + std::chrono::seconds(std::stoi(arguments[2]));
    std::thread report([&] {
        pthread_setname_np(pthread_self(), "report");
        while (clock_type::now() < ends) {
            read_prices(milliseconds(slow ? 20 : 0));
            std::this_thread::sleep_for(milliseconds(slow ? 5 : 20));
        }
    });
    std::thread feed([&] {
        pthread_setname_np(pthread_self(), "feed");
        while (clock_type::now() < ends) {
            update_price();
            std::this_thread::sleep_for(milliseconds(2));
        }
    });
    report.join();
    feed.join();
}
