/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The other end of the socket or the pipe that a thread waits on.
 *
 * Addresses are read when a single wait is emitted: the descriptor is still in the registers then. Whether an
 * answer was asked for is read when the thread goes to sleep. TCP and connected sockets of UDP count what
 * they send; a unix socket has only the memory of what the other end has not read yet. So is the descriptor
 * that a thread polls: clients that want a timeout poll the one connection on which they wait for an answer.
 */
#pragma once

#include "include/records.h"
#include "include/syscalls.h"
#include "open_file.h"
#include "thread_state.h"

#define TCP_SYN_SENT 2 /* net/tcp_states.h */
#define TCP_LISTEN 10
#define SOCK_BINDPORT_LOCK 8 /* include/net/sock.h */
#define POLL_IN 0x1          /* asm-generic/poll.h */
#define POLL_OUT 0x4

/* Of poll(2). */
struct polled_descriptor {
    s32 fd;
    s16 events;
    s16 ready;
};

/* Whether the present wait is on one socket or pipe. */
ALWAYS_INLINE bool has_peer(struct thread_state *t) {
    return t->reason == REASON_NETWORK || t->reason == REASON_IPC || t->reason == REASON_PIPE ||
           t->polled != POLLED_NOTHING;
}

ALWAYS_INLINE struct sock *socket_of_file(struct file *file) {
    struct socket *socket = BPF_CORE_READ(file, private_data);

    return BPF_CORE_READ(socket, sk);
}

ALWAYS_INLINE bool is_tcp(struct sock *sk) {
    u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);

    if (!bpf_core_type_exists(struct tcp_sock))
        return false;
    return (family == AF_INET || family == AF_INET6) && BPF_CORE_READ(sk, sk_protocol) == IPPROTO_TCP;
}

/* A connection that was accepted has the backlog of its listener, which is a copy; one that was made has
 * none. */
ALWAYS_INLINE u8 role_in_tcp(struct sock *sk) {
    return BPF_CORE_READ(sk, sk_max_ack_backlog) ? PEER_ROLE_SERVER : PEER_ROLE_CLIENT;
}

/* A server binds its port; a client that connects leaves the port to the kernel. */
ALWAYS_INLINE u8 role_in_udp(struct sock *sk) {
    bool is_bound = BPF_CORE_READ_BITFIELD_PROBED(sk, sk_userlocks) & SOCK_BINDPORT_LOCK;

    return BPF_CORE_READ(sk, __sk_common.skc_dport) && !is_bound ? PEER_ROLE_CLIENT : PEER_ROLE_UNKNOWN;
}

/* The number of the next packet: a connected socket of IPv4 counts its packets (include/net/ip.h,
 * ip_select_ident_segs). */
ALWAYS_INLINE u32 packets_of_udp(struct sock *sk) {
    struct inet_sock *inet = (struct inet_sock *)sk;

    if (bpf_core_field_exists(inet->inet_id))
        return BPF_CORE_READ(inet, inet_id.counter);
    return BPF_CORE_READ((struct inet_sock___short_id *)sk, inet_id);
}

/* Whether the other end has yet to read something that the socket sent (sock_wfree). One is the socket's own.
 */
ALWAYS_INLINE bool has_unread(struct sock *sk) { return BPF_CORE_READ(sk, sk_wmem_alloc.refs.counter) > 1; }

#define MOST_PARTS 3    /* in which an answer comes, after the first */
#define ENOUGH_ROUNDS 2 /* of a question and an answer */

/* Whether a thread that goes to sleep on this connection has asked, where it has sent so much. It has if it
 * has sent since it went to sleep there the last time. It waits for more of the answer if few sleeps without
 * a question were between its last questions. A feed has more of them. Of a connection on which it has not
 * slept yet, it is unknown.
 */
ALWAYS_INLINE u8 asked_on(struct thread_state *t, struct sock *sk, u32 sequence) {
    u8 asked = ASKED_YES;

    if (t->asked_sock != (u64)sk) {
        asked = ASKED_UNKNOWN;
        t->asked_rounds = 0;
        t->asked_parts = MOST_PARTS + 1;
    } else if (sequence == t->asked_sequence) {
        if (t->asked_parts <= MOST_PARTS)
            t->asked_parts++;
        if (t->asked_parts > MOST_PARTS)
            t->asked_rounds = 0;
        if (t->asked_rounds < ENOUGH_ROUNDS)
            asked = ASKED_NO;
    } else {
        if (t->asked_parts <= MOST_PARTS && t->asked_rounds < ENOUGH_ROUNDS)
            t->asked_rounds++;
        t->asked_parts = 0;
    }
    t->asked_sock = (u64)sk;
    t->asked_sequence = sequence;
    return asked;
}

/* Notes whether the thread waits for an answer. Before the first answer it is known of a connection on which
 * the thread has not slept yet, too. */
GLOBAL int note_request(struct thread_state *t, u64 fd) {
    struct file *file;
    struct tcp_sock *tcp;
    struct sock *sk;
    u16 family;
    u8 state;

    if (!t)
        return 0;
    t->asked = ASKED_UNKNOWN;
    file = (struct file *)own_file(fd);
    if (!file || (BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT) != S_IFSOCK)
        return 0;
    sk = socket_of_file(file);
    if (!sk)
        return 0;
    family = BPF_CORE_READ(sk, __sk_common.skc_family);
    /* A client that polls may wait for what the other end sends by itself. */
    if (family == AF_UNIX && t->polled == POLLED_NOTHING && has_unread(sk))
        t->asked = ASKED_YES;
    if (family == AF_INET && BPF_CORE_READ(sk, sk_protocol) == IPPROTO_UDP) {
        if (BPF_CORE_READ(sk, __sk_common.skc_daddr))
            t->asked = asked_on(t, sk, packets_of_udp(sk));
        return 0;
    }
    if (!is_tcp(sk))
        return 0;
    state = BPF_CORE_READ(sk, __sk_common.skc_state);
    if (t->polled != POLLED_NOTHING && (state == TCP_SYN_SENT || state == TCP_LISTEN))
        t->polled = POLLED_CONNECTION;
    if (role_in_tcp(sk) != PEER_ROLE_CLIENT)
        return 0;
    tcp = (struct tcp_sock *)sk;
    t->asked = asked_on(t, sk, BPF_CORE_READ(tcp, write_seq));
    if (t->asked == ASKED_UNKNOWN && !BPF_CORE_READ(tcp, bytes_received) && BPF_CORE_READ(tcp, bytes_sent)) {
        t->asked = ASKED_YES;
        t->asked_parts = 0;
    }
    return 0;
}

/* The one descriptor that the current thread polls. */
NOINLINE int note_polled(struct task_struct *task, struct thread_state *t) {
    struct polled_descriptor polled;
    struct pt_regs *regs;

    if (!task || !t)
        return 0;
    regs = (struct pt_regs *)bpf_task_pt_regs(task);
    if (regs->si != 1 || bpf_probe_read_user(&polled, sizeof(polled), (void *)regs->di) || polled.fd < 0)
        return 0;
    t->polled_fd = polled.fd;
    t->polled = (polled.events & POLL_OUT) && !(polled.events & POLL_IN) ? POLLED_SPACE : POLLED_DATA;
    return note_request(t, polled.fd);
}

/* Notes the polled descriptor and the request of a thread that goes to sleep. */
ALWAYS_INLINE void note_awaited_end(struct task_struct *task, struct thread_state *t) {
    t->polled = POLLED_NOTHING;
    if (t->reason == REASON_NETWORK || t->reason == REASON_IPC)
        note_request(t, ((struct pt_regs *)bpf_task_pt_regs(task))->di);
    else if (t->reason == REASON_POLL && (t->syscall == NR_POLL || t->syscall == NR_PPOLL))
        note_polled(task, t);
}

ALWAYS_INLINE void note_inet_peer(struct wait_peer *peer, struct sock *sk, u16 family) {
    u32 own = 0, other = 0;
    u16 protocol = BPF_CORE_READ(sk, sk_protocol);

    if (protocol == IPPROTO_TCP)
        peer->kind = PEER_TCP;
    else if (protocol == IPPROTO_UDP)
        peer->kind = PEER_UDP;
    else
        return;
    peer->role = protocol == IPPROTO_TCP ? role_in_tcp(sk) : role_in_udp(sk);
    peer->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
    peer->remote_port = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
    if (family == AF_INET6) {
        if (!bpf_core_field_exists(sk->__sk_common.skc_v6_daddr))
            return;
        bpf_core_read(peer->local, sizeof(peer->local), &sk->__sk_common.skc_v6_rcv_saddr);
        bpf_core_read(peer->remote, sizeof(peer->remote), &sk->__sk_common.skc_v6_daddr);
        peer->family = 6;
        return;
    }
    own = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
    other = BPF_CORE_READ(sk, __sk_common.skc_daddr);
    __builtin_memcpy(peer->local, &own, sizeof(own));
    __builtin_memcpy(peer->remote, &other, sizeof(other));
    peer->family = 4;
}

/* The process that is at the other end of a unix socket is the one that listened, or that connected. The side
 * with a name accepted the connection. */
ALWAYS_INLINE void note_unix_peer(struct wait_peer *peer, struct sock *sk, u32 tgid) {
    struct unix_sock *own = (struct unix_sock *)sk, *other;
    struct pid *pid = BPF_CORE_READ(sk, sk_peer_pid);

    peer->kind = PEER_UNIX;
    /* The kernel's type information lacks modules. */
    if (!bpf_core_type_exists(struct unix_sock))
        return;
    if (pid)
        peer->pid = BPF_CORE_READ(pid, numbers[0].nr);
    /* Both ends of a pair have the process that made it. */
    if (peer->pid == tgid)
        peer->pid = 0;
    other = (struct unix_sock *)BPF_CORE_READ(own, peer);
    if (BPF_CORE_READ(own, addr))
        peer->role = PEER_ROLE_SERVER;
    else if (other && BPF_CORE_READ(other, addr))
        peer->role = PEER_ROLE_CLIENT;
}

/* Whether the thread that ended the wait is of a child of the waiting process. A process that has ended by
 * now may have left its memory to another one, which has another number. */
ALWAYS_INLINE bool is_woken_by_child(struct task_struct *task, struct thread_state *t) {
    struct task_struct *waker = (struct task_struct *)t->waker_task;

    if (!waker || !t->waker_tid || (u32)BPF_CORE_READ(waker, pid) != t->waker_tid)
        return false;
    return BPF_CORE_READ(waker, real_parent, tgid) == task->tgid;
}

/* What other threads send while one waits for the next packet is no question of the waiting thread. */
ALWAYS_INLINE void note_sent_meanwhile(struct thread_state *t, struct sock *sk) {
    if (t->asked_sock == (u64)sk && BPF_CORE_READ(sk, sk_protocol) == IPPROTO_UDP)
        t->asked_sequence = packets_of_udp(sk);
}

/* Sets nothing where the descriptor has been closed meanwhile. */
NOINLINE int note_peer(struct task_struct *task, struct stall_record *stall, struct thread_state *t) {
    struct pt_regs *regs;
    struct file *file;
    struct sock *sk;
    u32 kind;
    u16 family;

    if (!task || !stall || !t || t->syscall < 0)
        return 0;
    regs = (struct pt_regs *)bpf_task_pt_regs(task);
    file = file_of(task, t->polled == POLLED_NOTHING ? regs->di : t->polled_fd);
    if (!file)
        return 0;
    kind = BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT;
    if (kind == S_IFIFO) {
        stall->peer.kind = PEER_PIPE;
        stall->peer.by_child = (stall->flags & STALL_WOKEN) && is_woken_by_child(task, t);
    } else if (kind == S_IFSOCK) {
        sk = socket_of_file(file);
        if (!sk)
            return 0;
        family = BPF_CORE_READ(sk, __sk_common.skc_family);
        if (family == AF_UNIX)
            note_unix_peer(&stall->peer, sk, task->tgid);
        else if (family == AF_INET || family == AF_INET6)
            note_inet_peer(&stall->peer, sk, family);
        note_sent_meanwhile(t, sk);
    }
    if (!stall->peer.kind)
        return 0;
    stall->peer.inode = BPF_CORE_READ(file, f_inode, i_ino);
    stall->peer.asked =
        t->reason == REASON_NETWORK || t->reason == REASON_IPC || t->polled ? t->asked : ASKED_UNKNOWN;
    stall->peer.polled = t->polled;
    stall->flags |= STALL_PEER;
    return 0;
}
