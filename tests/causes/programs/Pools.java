// SPDX-License-Identifier: Apache-2.0
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Pools of all kinds with little to do: a trivial task each 10 ms, two of 30 ms each 400 ms.
 *
 * usage: Pools locked|idle SECONDS. With locked, three tasks at a time change a table under one lock, for 20 ms each.
 */
public class Pools {
    static final ReentrantLock LOCK = new ReentrantLock();
    static long changes;

    interface Work {
        void run() throws Exception;
    }

    static void rest(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    static void changeTable() {
        LOCK.lock();
        try {
            changes++;
            rest(20);
        } finally {
            LOCK.unlock();
        }
    }

    static ThreadFactory named(String name) {
        return task -> new Thread(task, name);
    }

    /** A client that does this each so many milliseconds. */
    static void client(String name, int milliseconds, Work work) {
        Thread client = new Thread(() -> {
            try {
                while (true) {
                    rest(milliseconds);
                    work.run();
                }
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        }, name);
        client.setDaemon(true);
        client.start();
    }

    static void submit(ExecutorService pool, int[] turn) throws Exception {
        pool.submit(() -> {});
        if (++turn[0] % 40 == 0) {
            Future<?> one = pool.submit(() -> rest(30));
            Future<?> other = pool.submit(() -> rest(30));
            one.get();
            other.get();
        }
    }

    public static void main(String[] arguments) throws Exception {
        boolean locked = arguments[0].equals("locked");
        ExecutorService orders = Executors.newFixedThreadPool(8, named("orders"));
        for (ExecutorService pool : new ExecutorService[] {
                orders, Executors.newCachedThreadPool(named("cached")), new ForkJoinPool(4) }) {
            int[] turn = new int[1];
            client("client", 10, () -> submit(pool, turn));
        }
        ScheduledExecutorService timers = Executors.newScheduledThreadPool(4, named("timers"));
        for (int period : new int[] { 10, 11, 13 }) {
            timers.scheduleAtFixedRate(() -> {}, 0, period, TimeUnit.MILLISECONDS);
        }
        timers.scheduleAtFixedRate(() -> rest(30), 0, 400, TimeUnit.MILLISECONDS);
        ExecutorService answers = Executors.newFixedThreadPool(4, named("answers"));
        client("asks", 20, () -> CompletableFuture.runAsync(() -> rest(1), answers).get());
        client("counts", 20, () -> {
            CountDownLatch all = new CountDownLatch(3);
            for (int task = 0; task < 3; task++) {
                answers.submit(() -> {
                    rest(1);
                    all.countDown();
                });
            }
            all.await();
        });
        if (locked) {
            client("changes", 100, () -> {
                for (int task = 0; task < 3; task++) {
                    orders.submit(Pools::changeTable);
                }
            });
        }
        rest(Integer.parseInt(arguments[1]) * 1_000);
        System.exit(0);
    }
}
