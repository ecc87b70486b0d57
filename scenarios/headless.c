// SPDX-License-Identifier: Apache-2.0
// headless: the first thread has ended, and the process works on, as a C program does whose main calls
// pthread_exit.
//
// `worker` sleeps for 20 ms again and again: doze. /proc/PID shows neither mappings nor a program from then
// on. Ends after 60 s, or killed. Prints nothing: there is no truth but its stacks.

#include "truth.h"

SHOWN static void doze(void) { sleep_for(20 * NS_PER_MS); }

SHOWN static void *work(void *unused) {
    prctl(PR_SET_NAME, "worker");
    for (int i = 0; i < 3000; i++)
        doze();
    exit(0);
    return unused;
}

int main(void) {
    pthread_t worker;
    int error = pthread_create(&worker, NULL, work, NULL);
    if (error != 0)
        die("cannot create a thread", error);
    pthread_exit(NULL);
}
