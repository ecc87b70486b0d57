// SPDX-License-Identifier: Apache-2.0
// A thread sends numbered packets, and another one receives them and counts those that are missing.
//
// usage: feed read|sleep|compute SECONDS. With sleep and compute, the receiver does that for 150 ms every half second.
// At its end, and once a second, it prints how many packets were sent, received and lost since its start.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAYLOAD = 1000, BURST = 10, BUFFER = 64 << 10 };
static const double PAUSE = 0.15, EVERY = 0.5;

static int in, out;
static double until;
static const char *mode;
static atomic_long sent;
static volatile unsigned book;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void refresh_cache(void)
{
	usleep(PAUSE * 1e6);
	book++;
}

__attribute__((noinline)) static void rebuild_book(void)
{
	for (double end = now() + PAUSE; now() < end;)
		for (int row = 0; row < 1000000; row++)
			book += row;
}

static void *receive(void *unused)
{
	long packet[PAYLOAD / sizeof(long)], received = 0, last = 0;
	double next = now() + EVERY, line = now() + 1;

	(void)unused;
	prctl(PR_SET_NAME, "receiver");
	while (now() < until) {
		if (recv(in, packet, sizeof packet, 0) > 0) {
			received++;
			last = packet[0];
		}
		if (now() > next && strcmp(mode, "read")) {
			if (!strcmp(mode, "sleep"))
				refresh_cache();
			else
				rebuild_book();
			next = now() + EVERY;
		}
		if (now() > line) {
			printf("%.2f sent %ld, received %ld, lost %ld\n", now(), last, received, last - received);
			fflush(stdout);
			line += 1;
		}
	}
	printf("%.2f sent %ld, received %ld, lost %ld\n", now(), last, received, last - received);
	return NULL;
}

static void *send_all(void *unused)
{
	long packet[PAYLOAD / sizeof(long)] = { 0 };

	(void)unused;
	prctl(PR_SET_NAME, "exchange");
	while (now() < until) {
		for (int at = 0; at < BURST; at++) {
			packet[0] = ++sent;
			send(out, packet, sizeof packet, 0);
		}
		usleep(2000);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	struct timeval second = { 1, 0 };
	int buffer = BUFFER;
	pthread_t threads[2];

	mode = count > 1 ? arguments[1] : "read";
	until = now() + (count > 2 ? atof(arguments[2]) : 3);
	in = socket(AF_INET, SOCK_DGRAM, 0);
	out = socket(AF_INET, SOCK_DGRAM, 0);
	setsockopt(in, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
	setsockopt(in, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
	if (bind(in, (struct sockaddr *)&address, length) || getsockname(in, (struct sockaddr *)&address, &length) ||
	    connect(out, (struct sockaddr *)&address, length)) {
		perror("feed");
		return 1;
	}
	pthread_create(&threads[0], NULL, receive, NULL);
	pthread_create(&threads[1], NULL, send_all, NULL);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	return 0;
}
