// SPDX-License-Identifier: Apache-2.0
// pingpong: two threads that hand one byte to and fro over two pipes.
//
// `ping` writes and then reads, `pong` reads and then writes: serve_ball → pass_ball and await_ball. With -m
// both threads move to the next CPU after every so many rounds, so that they are switched out on one CPU and
// come back on another.
//
// Truth, besides truth.h's lines:
//   {"event":"rounds", "tid", "name", "rounds", "migrations", "waited_ns"}   rounds completed, moves asked
//       for, and the total time in read by the thread's own clock
// Options: -c CPU, pin both threads to this CPU; -m N, move both after every N rounds; -w US, think this long
// before passing the ball on (default 0).

#include "truth.h"

struct player {
    uint64_t rounds, migrations, waited_ns;
    int from, to;
};

static struct player players[2];
static struct runner runners[2];
static int cpu = -1;
static uint64_t rounds_a_move;
static double think_us;
static struct run run = {.scenario = "pingpong", .seconds = 10, .seed = 42};

SHOWN static void pass_ball(const struct player *player) {
    char ball = 'o';
    if (write(player->to, &ball, 1) != 1)
        die("cannot pass the ball", errno);
}

// False when the other player has left.
SHOWN static bool await_ball(struct player *player) {
    char ball;
    uint64_t start = now_ns();
    ssize_t got = read(player->from, &ball, 1);
    player->waited_ns += now_ns() - start;
    return got == 1;
}

// The two players move one round apart, each to the CPU that follows the one it is on.
static void move_on(struct player *player) {
    pin_to((sched_getcpu() + 1) % (int)sysconf(_SC_NPROCESSORS_ONLN));
    player->migrations++;
}

static void end_round(struct player *player) {
    player->rounds++;
    if (rounds_a_move != 0 && player->rounds % rounds_a_move == 0)
        move_on(player);
    if (think_us > 0)
        spin_until(now_ns() + (uint64_t)(think_us * NS_PER_US));
}

SHOWN static void serve_ball(struct runner *self) {
    struct player *player = &players[self - runners];
    if (cpu >= 0)
        pin_to(cpu);
    if (self->index == 0)
        pass_ball(player);
    while (await_ball(player)) {
        end_round(player);
        if (self->index == 0 && run_is_over())
            break;
        pass_ball(player);
    }
    close(player->to);
}

static void print_truth(void) {
    for (int i = 0; i < 2; i++)
        printf("{\"event\":\"rounds\",\"tid\":%d,\"name\":\"%s\",\"rounds\":%llu,\"migrations\":%llu,"
               "\"waited_ns\":%llu}\n",
               runners[i].tid, runners[i].name, (unsigned long long)players[i].rounds,
               (unsigned long long)players[i].migrations, (unsigned long long)players[i].waited_ns);
}

static void lay_pipes(void) {
    int forth[2], back[2];
    if (pipe(forth) != 0 || pipe(back) != 0)
        die("cannot make a pipe", errno);
    players[0] = (struct player){.from = back[0], .to = forth[1]};
    players[1] = (struct player){.from = forth[0], .to = back[1]};
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'c', .argument = "CPU", .index = &cpu},
                                     {.letter = 'm', .argument = "ROUNDS", .count = &rounds_a_move},
                                     {.letter = 'w', .argument = "US", .number = &think_us}};
    take_options(argc, argv, &run, own, 3);
    lay_pipes();
    runners[0] = (struct runner){.name = "ping", .body = serve_ball, .index = 0};
    runners[1] = (struct runner){.name = "pong", .body = serve_ball, .index = 1};
    run_scenario(runners, 2, &run, print_truth);
}
