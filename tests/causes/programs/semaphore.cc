// SPDX-License-Identifier: Apache-2.0
// Four threads share connections to a database, counted by a std::counting_semaphore.
//
// usage: semaphore few|enough SECONDS. With few, there is one connection for all four; else there are four.
#include <pthread.h>

#include <chrono>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

using clock_type = std::chrono::steady_clock;
using std::chrono::milliseconds;

static std::counting_semaphore<4> connections(0);

[[gnu::noinline]] static void take_connection()
{
    connections.acquire();
}

int main(int, char **arguments)
{
    const bool few = arguments[1] == std::string("few");
    const auto ends = clock_type::now() + std::chrono::seconds(std::stoi(arguments[2]));
    connections.release(few ? 1 : 4);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&, i] {
            pthread_setname_np(pthread_self(), ("request-" + std::to_string(i)).c_str());
            while (clock_type::now() < ends) {
                take_connection();
                std::this_thread::sleep_for(milliseconds(5));
                connections.release();
                std::this_thread::sleep_for(milliseconds(1));
            }
        });
    for (auto &thread : threads)
        thread.join();
}
