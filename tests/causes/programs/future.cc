// SPDX-License-Identifier: Apache-2.0
// A thread asks another one for results, each of which takes some milliseconds, and waits for each.
//
// usage: future slow|quick SECONDS. A result takes 8 ms, or none. At its end the program prints the part of the time for
// which the thread waited, by its own clock.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <pthread.h>
#include <thread>

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

static std::mutex lock;
static std::condition_variable added;
static std::deque<std::packaged_task<int()>> tasks;
static bool ended;

__attribute__((noinline)) static void read_slowly(double ms)
{
	std::this_thread::sleep_for(Milliseconds(ms));
}

static int render_page(double ms)
{
	if (ms > 0)
		read_slowly(ms);
	return 1;
}

static void work()
{
	pthread_setname_np(pthread_self(), "renderer");
	for (;;) {
		std::unique_lock<std::mutex> held(lock);
		added.wait(held, [] { return ended || !tasks.empty(); });
		if (tasks.empty())
			return;
		auto task = std::move(tasks.front());
		tasks.pop_front();
		held.unlock();
		task();
	}
}

__attribute__((noinline)) static int ask_renderer(double ms)
{
	std::packaged_task<int()> task([ms] { return render_page(ms); });
	auto result = task.get_future();
	{
		std::lock_guard<std::mutex> held(lock);
		tasks.push_back(std::move(task));
	}
	added.notify_one();
	return result.get();
}

__attribute__((noinline)) static void pause_between()
{
	std::this_thread::sleep_for(Milliseconds(4));
}

int main(int count, char **arguments)
{
	double ms = count > 1 && !strcmp(arguments[1], "slow") ? 8 : 0;
	auto start = Clock::now();
	auto until = start + std::chrono::duration<double>(count > 2 ? atof(arguments[2]) : 3);
	Milliseconds waited(0);
	std::thread worker(work);

	std::thread web([&] {
		pthread_setname_np(pthread_self(), "web");
		while (Clock::now() < until) {
			auto before = Clock::now();
			ask_renderer(ms);
			waited += Clock::now() - before;
			pause_between();
		}
	});
	web.join();
	{
		std::lock_guard<std::mutex> held(lock);
		ended = true;
	}
	added.notify_all();
	worker.join();
	Milliseconds whole = Clock::now() - start;
	std::printf("waited %.0f of %.0f ms, %.1f %%\n", waited.count(), whole.count(), waited / whole * 100);
	return 0;
}
