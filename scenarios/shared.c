// SPDX-License-Identifier: Apache-2.0
// shared: one mutex of two processes, in a file that both have mapped.
//
// With -k the process holds the mutex until its time is over. Without, it waits for the mutex:
// wait_for_mutex. Run in a pid namespace each, both are process 1, and the mutex is held by thread 1.
//
// Options: -f FILE (which the holder makes), -k.
// Prints `holds` when it holds the mutex, and nothing else.

#include "truth.h"

#include <sys/mman.h>

static struct run run = {.scenario = "shared", .seconds = 5, .seed = 42};

static pthread_mutex_t *map_mutex(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0)
        die(path, errno);
    void *mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mutex == MAP_FAILED)
        die("mmap", errno);
    return mutex;
}

SHOWN static void hold(pthread_mutex_t *mutex) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(mutex, &how);
    pthread_mutex_lock(mutex);
    printf("holds\n");
    fflush(stdout);
    sleep_for((uint64_t)(run.seconds * NS_PER_S));
    pthread_mutex_unlock(mutex);
}

SHOWN static void wait_for_mutex(pthread_mutex_t *mutex) {
    pthread_mutex_lock(mutex);
    pthread_mutex_unlock(mutex);
}

int main(int argc, char **argv) {
    const char *path = NULL;
    bool keeps = false;
    const struct own_option own[] = {{.letter = 'f', .argument = "FILE", .text = &path},
                                     {.letter = 'k', .flag = &keeps}};
    take_options(argc, argv, &run, own, 2);
    if (path == NULL)
        die("-f FILE", EINVAL);
    pthread_mutex_t *mutex = map_mutex(path);
    if (keeps)
        hold(mutex);
    else
        wait_for_mutex(mutex);
}
