// SPDX-License-Identifier: Apache-2.0
// kernel_waits: a thread that waits inside a system call for the kernel, or for a process that serves it.
//
//   worker   makes the call again and again: wait_once
//   keeper   a process: the other end, which takes 30 ms before it answers: answer_late; at once with -q
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "count", "total_ns", "longest_ns"}   the worker's calls of 5 ms or longer, by its own
//   clock
//   {"event":"keeper", "pid"}     the other end, where there is one
//   {"event":"refused", "what"}   the kernel or the user's rights do not permit it: there are no calls
// Options: -q; -k KIND (default membarrier):
//   membarrier  it waits for an RCU grace period; with -q it interrupts the other CPUs instead
//   scanner     it opens a file, and a fanotify listener decides about that
//   seccomp     it makes a system call, and the listener of its filter decides about that
//   fuse        it reads a file of a file system in user space, page by page
//   pages       so, too, and the kernel asks for the pages without waiting, and then waits for a page
//   store       it stores to a mapped page of such a file, which is being written back
//   terminal    it writes to a terminal whose other end is read 4 KiB at a time
//   fifo        it opens a FIFO for writing
//   linger      it closes a connection whose other end has not read everything; with -q it does not wait
//   datagram    it sends to a unix socket whose queue is full
//   connection  it connects to a unix socket whose listener has as many connections as it may have waiting
//   message     it sends to a message queue of System V that is full
//   mqueue      the same to one of POSIX
//   lease       it opens a file for writing of which the keeper has a lease (F_SETLEASE)
//   automount   it looks for a file in an autofs whose daemon is the keeper
//   vfork       it starts a process that ends, or would execute its program, after 30 ms; there is no keeper
//   log         it reads the kernel's trace, line by line

#include "truth.h"

#include <arpa/inet.h>
#include <linux/auto_fs.h>
#include <linux/filter.h>
#include <linux/fuse.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <sched.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>

#define DELAY_NS (30 * NS_PER_MS)
#define LONG_NS (5 * NS_PER_MS)
#define PAGE 4096

struct kind {
    const char *name;
    void (*prepare)(void); // before the worker exists; calls refuse() where it is not possible
    void (*wait_once)(void);
    void (*keep)(void);  // of the other process, which never returns; NULL: there is none
    void (*after)(void); // after each wait
};

static const char *kind_name = "membarrier";
static bool quick;
static const struct kind *kind;
static pid_t keeper;
static char folder[64], path[128];
static int fds[2] = {-1, -1};
static const char *refused;
static int refused_error;
static struct run run = {.scenario = "kernel_waits", .seconds = 3, .seed = 42};
static struct {
    uint64_t count, total_ns, longest_ns;
} waits;

static void refuse(const char *what) {
    refused_error = errno;
    refused = what;
}

SHOWN static void answer_late(void) {
    if (!quick)
        sleep_for(DELAY_NS);
}

static void make_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/wallprof-waits-XXXXXX");
    if (mkdtemp(folder) == NULL)
        die(folder, errno);
    snprintf(path, sizeof path, "%s/file", folder);
}

// In a mount namespace of its own: a scenario that is killed leaves nothing mounted.
static bool mount_here(const char *type, const char *options) {
    make_folder();
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("served", folder, type, MS_NOSUID | MS_NODEV, options) == 0;
}

// --- membarrier ---

static int barrier_command;

static void prepare_membarrier(void) {
    barrier_command = quick ? MEMBARRIER_CMD_PRIVATE_EXPEDITED : MEMBARRIER_CMD_GLOBAL;
    if (quick && syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
        refuse("membarrier");
    if (syscall(SYS_membarrier, barrier_command, 0, 0) != 0)
        refuse("membarrier");
}

static void wait_for_readers(void) { syscall(SYS_membarrier, barrier_command, 0, 0); }

// --- scanner ---

static void prepare_scanner(void) {
    make_folder();
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    fds[0] = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY);
    if (fds[0] < 0 || fanotify_mark(fds[0], FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, path) != 0)
        refuse("fanotify");
}

static void open_file(void) { close(open(path, O_RDONLY | O_CLOEXEC)); }

static void scan(void) {
    struct fanotify_event_metadata event;
    while (read(fds[0], &event, sizeof event) > 0) {
        struct fanotify_response response = {.fd = event.fd, .response = FAN_ALLOW};
        answer_late();
        if (write(fds[0], &response, sizeof response) < 0)
            die("fanotify", errno);
        close(event.fd);
    }
}

// --- seccomp ---

// The filter holds for the calling thread, which becomes the worker, and for the keeper that it starts.
static void prepare_seccomp(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_uname, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    fds[0] = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (fds[0] < 0)
        refuse("seccomp");
}

static void ask_supervisor(void) {
    struct utsname name;
    uname(&name);
}

static void supervise(void) {
    for (;;) {
        struct seccomp_notif notice = {0};
        if (ioctl(fds[0], SECCOMP_IOCTL_NOTIF_RECV, &notice) != 0)
            continue;
        answer_late();
        struct seccomp_notif_resp response = {.id = notice.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(fds[0], SECCOMP_IOCTL_NOTIF_SEND, &response);
    }
}

// --- fuse ---

#define SERVED_NODE 2
#define SERVED_BYTES (1 << 30)
#define STORED_AT (3 * PAGE)

static off_t read_at;

static bool asks_ahead;

static void prepare_fuse(void) {
    char options[128];
    fds[0] = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fds[0]);
    if (fds[0] < 0 || !mount_here("fuse.served", options))
        refuse("FUSE");
}

static void prepare_pages(void) {
    asks_ahead = true;
    prepare_fuse();
}

static void read_page(void) {
    static char page[PAGE];
    if (fds[1] < 0)
        fds[1] = open(path, O_RDONLY | O_CLOEXEC);
    // Far apart, so that nothing is read ahead.
    if (pread(fds[1], page, sizeof page, read_at) < 0)
        die(path, errno);
    read_at += 64 * PAGE;
}

// Each store finds the page as the one before it left it: on its way to the keeper.
static void store_to_page(void) {
    static volatile char *page;
    if (page == NULL) {
        fds[1] = open(path, O_RDWR | O_CLOEXEC);
        page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], STORED_AT);
        if (page == MAP_FAILED)
            die(path, errno);
    }
    (*page)++;
}

static void write_back(void) { sync_file_range(fds[1], STORED_AT, PAGE, SYNC_FILE_RANGE_WRITE); }

static void reply(const struct fuse_in_header *request, int error, const void *body, size_t size) {
    static char bytes[sizeof(struct fuse_out_header) + 256 * PAGE];
    struct fuse_out_header header = {
        .len = (uint32_t)(sizeof header + size), .error = error, .unique = request->unique};
    memcpy(bytes, &header, sizeof header);
    if (body)
        memcpy(bytes + sizeof header, body, size);
    else
        memset(bytes + sizeof header, 0, size);
    if (write(fds[0], bytes, header.len) < 0 && errno != ENOENT)
        die("a reply", errno);
}

static struct fuse_attr attributes(uint64_t node) {
    return (struct fuse_attr){.ino = node,
                              .size = SERVED_BYTES,
                              .mode = node == SERVED_NODE ? S_IFREG | 0600 : S_IFDIR | 0700,
                              .nlink = 1};
}

static void serve_request(const struct fuse_in_header *request, const void *body) {
    struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
                                 .minor = 31,
                                 .max_write = PAGE,
                                 .flags = asks_ahead ? FUSE_ASYNC_READ : 0};
    struct fuse_entry_out entry = {
        .nodeid = SERVED_NODE, .entry_valid = 60, .attr_valid = 60, .attr = attributes(SERVED_NODE)};
    struct fuse_attr_out attr = {.attr_valid = 60, .attr = attributes(request->nodeid)};
    struct fuse_open_out opened = {.fh = 1};
    struct fuse_write_out written = {0};
    switch (request->opcode) {
    case FUSE_INIT:
        return reply(request, 0, &init, sizeof init);
    case FUSE_LOOKUP:
        return reply(request, 0, &entry, sizeof entry);
    case FUSE_GETATTR:
        return reply(request, 0, &attr, sizeof attr);
    case FUSE_OPEN:
        return reply(request, 0, &opened, sizeof opened);
    case FUSE_READ:
        answer_late();
        return reply(request, 0, NULL, ((const struct fuse_read_in *)body)->size);
    case FUSE_WRITE:
        answer_late();
        written.size = ((const struct fuse_write_in *)body)->size;
        return reply(request, 0, &written, sizeof written);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
        return;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        return reply(request, 0, NULL, 0);
    }
    reply(request, -ENOSYS, NULL, 0);
}

static void serve_files(void) {
    static _Alignas(8) char request[1 << 17];
    while (read(fds[0], request, sizeof request) > 0)
        serve_request((const struct fuse_in_header *)request, request + sizeof(struct fuse_in_header));
}

// --- terminal ---

static void prepare_terminal(void) {
    struct termios raw;
    fds[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fds[0] < 0 || grantpt(fds[0]) != 0 || unlockpt(fds[0]) != 0)
        return refuse("a terminal");
    fds[1] = open(ptsname(fds[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fds[1] < 0 || tcgetattr(fds[1], &raw) != 0)
        return refuse("a terminal");
    cfmakeraw(&raw);
    tcsetattr(fds[1], TCSANOW, &raw);
}

static void print_lines(void) {
    char lines[512] = "";
    if (write(fds[1], lines, sizeof lines) < 0)
        die("a terminal", errno);
}

static void read_terminal(void) {
    char lines[4096];
    do
        answer_late();
    while (read(fds[0], lines, sizeof lines) > 0);
}

// --- FIFO ---

static void prepare_fifo(void) {
    make_folder();
    if (mkfifo(path, 0600) != 0)
        refuse("a FIFO");
}

static void open_fifo(void) { close(open(path, O_WRONLY | O_CLOEXEC)); }

static void read_fifo(void) {
    for (;;) {
        char byte;
        answer_late();
        int fifo = open(path, O_RDONLY | O_CLOEXEC);
        while (read(fifo, &byte, 1) > 0)
            ;
        close(fifo);
    }
}

// --- linger ---

static struct sockaddr_in address = {.sin_family = AF_INET};

static void prepare_linger(void) {
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int bytes = 1 << 16;
    setsockopt(fds[0], SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (bind(fds[0], (struct sockaddr *)&address, size) != 0 || listen(fds[0], 8) != 0 ||
        getsockname(fds[0], (struct sockaddr *)&address, &size) != 0)
        refuse("a connection");
}

static void close_connection(void) {
    static char bytes[1 << 16];
    struct linger linger = {.l_onoff = !quick, .l_linger = 2};
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), size = 1 << 16;
    setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(connection, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) != 0)
        die("a connection", errno);
    while (send(connection, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    close(connection);
}

static void read_late(void) {
    static char bytes[1 << 20];
    for (;;) {
        int connection = accept(fds[0], NULL, NULL);
        answer_late();
        while (read(connection, bytes, sizeof bytes) > 0)
            ;
        close(connection);
    }
}

// --- datagrams ---

static struct sockaddr_un name = {.sun_family = AF_UNIX};

static void prepare_datagram(void) {
    make_folder();
    snprintf(name.sun_path, sizeof name.sun_path, "%.100s", path);
    fds[0] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    fds[1] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    // The sender's own buffer is larger than the queue of the receiver.
    int bytes = 1 << 24;
    setsockopt(fds[1], SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    if (bind(fds[0], (struct sockaddr *)&name, sizeof name) != 0 ||
        connect(fds[1], (struct sockaddr *)&name, sizeof name) != 0)
        refuse("a socket");
}

static void log_line(void) {
    if (send(fds[1], "line", 4, 0) < 0)
        die("a socket", errno);
}

static void read_datagrams(void) {
    char line[16];
    do
        answer_late();
    while (recv(fds[0], line, sizeof line, 0) >= 0);
}

// --- connections ---

static void prepare_connection(void) {
    make_folder();
    snprintf(name.sun_path, sizeof name.sun_path, "%.100s", path);
    fds[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fds[0], (struct sockaddr *)&name, sizeof name) != 0 || listen(fds[0], 1) != 0)
        refuse("a socket");
}

static void connect_once(void) {
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, (struct sockaddr *)&name, sizeof name) != 0)
        die("a connection", errno);
    close(connection);
}

static void accept_late(void) {
    int connection;
    do
        answer_late();
    while ((connection = accept(fds[0], NULL, NULL)) >= 0 && close(connection) == 0);
}

// --- message queues ---

#define MESSAGE_BYTES 4096

static int messages;
static struct {
    long type;
    char text[MESSAGE_BYTES];
} message = {.type = 1};

// The keeper and the worker keep it, and the kernel after them: it is removed by clean_up().
static void prepare_message(void) {
    messages = msgget(IPC_PRIVATE, 0600);
    if (messages < 0)
        refuse("a message queue");
}

static void send_message(void) {
    if (msgsnd(messages, &message, MESSAGE_BYTES, 0) != 0)
        die("a message queue", errno);
}

static void take_messages(void) {
    do
        answer_late();
    while (msgrcv(messages, &message, MESSAGE_BYTES, 0, 0) >= 0);
}

static void prepare_mqueue(void) {
    struct mq_attr size = {.mq_maxmsg = 2, .mq_msgsize = MESSAGE_BYTES};
    snprintf(folder, sizeof folder, "/wallprof-waits-%d", getpid());
    messages = mq_open(folder, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600, &size);
    if (messages < 0)
        refuse("a message queue");
    mq_unlink(folder);
}

static void send_to_mqueue(void) {
    if (mq_send(messages, message.text, MESSAGE_BYTES, 0) != 0)
        die("a message queue", errno);
}

static void read_mqueue(void) {
    do
        answer_late();
    while (mq_receive(messages, message.text, MESSAGE_BYTES, NULL) >= 0);
}

// --- leases ---

static void prepare_lease(void) {
    make_folder();
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGIO);
    sigprocmask(SIG_BLOCK, &signals, NULL);
}

static void open_for_writing(void) { close(open(path, O_WRONLY | O_CLOEXEC)); }

static void give_leases_up(void) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGIO);
    for (;;) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (fcntl(file, F_SETLEASE, F_RDLCK) == 0) {
            sigwaitinfo(&signals, NULL);
            answer_late();
        }
        close(file);
    }
}

// --- autofs ---

static void prepare_automount(void) {
    char options[128];
    make_folder();
    if (pipe2(fds, O_CLOEXEC | O_DIRECT) != 0)
        return refuse("a pipe");
    // Calls of the daemon's process group do not wait.
    setpgid(0, 0);
    snprintf(options, sizeof options, "fd=%d,pgrp=%d,minproto=5,maxproto=5,indirect", fds[1],
             getpgid(getppid()));
    if (!mount_here("autofs", options))
        refuse("autofs");
}

static void look_for_file(void) {
    static int looks;
    char missing[160];
    snprintf(missing, sizeof missing, "%s/missing-%d", folder, looks++);
    if (access(missing, F_OK) == 0)
        die("autofs", EEXIST);
}

static void mount_nothing(void) {
    struct autofs_v5_packet packet;
    int root = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (read(fds[0], &packet, sizeof packet) > 0) {
        answer_late();
        ioctl(root, AUTOFS_IOC_FAIL, packet.wait_queue_token);
    }
}

// --- vfork ---

static int end_late(void *argument) {
    (void)argument;
    if (quick)
        setpriority(PRIO_PROCESS, 0, -15);
    answer_late();
    _exit(0);
}

static void start_process(void) {
    static char stack[65536] __attribute__((aligned(16)));
    pid_t child = clone(end_late, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    if (child < 0)
        die("clone", errno);
    waitpid(child, NULL, 0);
}

static void prepare_nothing(void) {}

// --- the kernel's trace ---

static char instance[160];

static void prepare_log(void) {
    char file[256];
    if (!mount_here("tracefs", NULL))
        return refuse("tracefs");
    snprintf(instance, sizeof instance, "%s/instances/wallprof-waits-%d", folder, getpid());
    if (mkdir(instance, 0700) != 0)
        return refuse("tracefs");
    snprintf(file, sizeof file, "%s/trace_pipe", instance);
    fds[0] = open(file, O_RDONLY | O_CLOEXEC);
    snprintf(file, sizeof file, "%s/trace_marker", instance);
    fds[1] = open(file, O_WRONLY | O_CLOEXEC);
    if (fds[0] < 0 || fds[1] < 0)
        refuse("tracefs");
}

static void read_trace(void) {
    char line[4096];
    if (read(fds[0], line, sizeof line) < 0)
        die("trace_pipe", errno);
}

static void write_trace(void) {
    do
        sleep_for(DELAY_NS);
    while (write(fds[1], "line\n", 5) == 5);
}

// --- the run ---

static const struct kind kinds[] = {
    {"membarrier", prepare_membarrier, wait_for_readers, NULL, NULL},
    {"scanner", prepare_scanner, open_file, scan, NULL},
    {"seccomp", prepare_seccomp, ask_supervisor, supervise, NULL},
    {"fuse", prepare_fuse, read_page, serve_files, NULL},
    {"pages", prepare_pages, read_page, serve_files, NULL},
    {"store", prepare_fuse, store_to_page, serve_files, write_back},
    {"terminal", prepare_terminal, print_lines, read_terminal, NULL},
    {"fifo", prepare_fifo, open_fifo, read_fifo, NULL},
    {"linger", prepare_linger, close_connection, read_late, NULL},
    {"datagram", prepare_datagram, log_line, read_datagrams, NULL},
    {"connection", prepare_connection, connect_once, accept_late, NULL},
    {"message", prepare_message, send_message, take_messages, NULL},
    {"mqueue", prepare_mqueue, send_to_mqueue, read_mqueue, NULL},
    {"lease", prepare_lease, open_for_writing, give_leases_up, NULL},
    {"automount", prepare_automount, look_for_file, mount_nothing, NULL},
    {"vfork", prepare_nothing, start_process, NULL, NULL},
    {"log", prepare_log, read_trace, write_trace, NULL},
};

static void start_keeper(void) {
    if (kind->keep == NULL)
        return;
    keeper = fork();
    if (keeper < 0)
        die("fork", errno);
    if (keeper == 0) {
        prctl(PR_SET_NAME, "keeper");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        // Other programs do not keep it from answering at once.
        if (quick)
            setpriority(PRIO_PROCESS, 0, -15);
        kind->keep();
        _exit(0);
    }
    if (kind->keep == serve_files)
        close(fds[0]);
}

SHOWN static void wait_once(void) {
    uint64_t start = now_ns();
    kind->wait_once();
    uint64_t ns = now_ns() - start;
    if (ns < LONG_NS)
        return;
    waits.count++;
    waits.total_ns += ns;
    if (ns > waits.longest_ns)
        waits.longest_ns = ns;
}

SHOWN static void wait_often(struct runner *self) {
    (void)self;
    while (!refused && !run_is_over()) {
        wait_once();
        if (kind->after)
            kind->after();
        sleep_for(quick ? 50 * NS_PER_MS : NS_PER_MS);
    }
}

// Before the scenario may be killed. The keeper alone has the other end of a file system, so that the end of
// the keeper ends all requests to it.
static void clean_up(void) {
    if (keeper > 0) {
        kill(keeper, SIGKILL);
        waitpid(keeper, NULL, 0);
    }
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    if (instance[0])
        rmdir(instance);
    if (kind->keep == take_messages)
        msgctl(messages, IPC_RMID, NULL);
    umount2(folder, MNT_DETACH);
    unlink(path);
    rmdir(folder);
}

static void print_truth(void) {
    if (refused)
        printf("{\"event\":\"refused\",\"what\":\"%s: %s\"}\n", refused, strerror(refused_error));
    if (keeper > 0)
        printf("{\"event\":\"keeper\",\"pid\":%d}\n", keeper);
    printf("{\"event\":\"waits\",\"count\":%llu,\"total_ns\":%llu,\"longest_ns\":%llu}\n",
           (unsigned long long)waits.count, (unsigned long long)waits.total_ns,
           (unsigned long long)waits.longest_ns);
    clean_up();
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'k', .argument = "KIND", .text = &kind_name},
                                     {.letter = 'q', .flag = &quick}};
    struct runner runners[] = {{.name = "worker", .body = wait_often}};
    take_options(argc, argv, &run, own, 2);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kind_name, kinds[i].name) == 0)
            kind = &kinds[i];
    if (kind == NULL)
        die(kind_name, EINVAL);
    kind->prepare();
    if (!refused)
        start_keeper();
    run_scenario(runners, 1, &run, print_truth);
}
