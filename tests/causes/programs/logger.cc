// SPDX-License-Identifier: Apache-2.0
// An engine that logs each order through spdlog's asynchronous logger, whose queue has room for 64 messages.
//
// usage: logger slow|quick SECONDS. With slow, the thread that writes them takes 3 ms for each; else it has
// time.
#include <pthread.h>
#include <spdlog/async.h>
#include <spdlog/sinks/base_sink.h>

#include <chrono>
#include <string>
#include <thread>

using clock_type = std::chrono::steady_clock;
using std::chrono::milliseconds;

static bool is_slow;

[[gnu::noinline]] static void write_line() {
    if (is_slow)
        std::this_thread::sleep_for(milliseconds(3));
}

class Sink : public spdlog::sinks::base_sink<std::mutex> {
    void sink_it_(const spdlog::details::log_msg &) override { write_line(); }

    void flush_() override {}
};

[[gnu::noinline]] static void take_order(spdlog::logger &logger) { logger.info("an order"); }

int main(int, char **arguments) {
    is_slow = arguments[1] == std::string("slow");
    const auto ends = clock_type::now() + std::chrono::seconds(std::stoi(arguments[2]));
    spdlog::init_thread_pool(64, 1, [] { pthread_setname_np(pthread_self(), "writer"); });
    const auto logger =
        std::make_shared<spdlog::async_logger>("orders", std::make_shared<Sink>(), spdlog::thread_pool());
    pthread_setname_np(pthread_self(), "engine");
    while (clock_type::now() < ends) {
        take_order(*logger);
        std::this_thread::sleep_for(milliseconds(1));
    }
    std::_Exit(0);
}
