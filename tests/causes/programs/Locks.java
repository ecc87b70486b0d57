// SPDX-License-Identifier: Apache-2.0
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Two threads, "orders" and "audit", that change one table under a lock.
 *
 * usage: Locks monitor|reentrant slow|quick SECONDS. With slow, audit sleeps 20 ms while it holds the lock.
 */
public class Locks {
    static final Object TABLE = new Object();
    static final ReentrantLock LOCK = new ReentrantLock();
    static long changes;

    static void rest(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    static void changeTable(boolean monitor, int held) {
        if (monitor) {
            synchronized (TABLE) {
                changes++;
                rest(held);
            }
        } else {
            LOCK.lock();
            try {
                changes++;
                rest(held);
            } finally {
                LOCK.unlock();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        boolean monitor = arguments[0].equals("monitor");
        boolean slow = arguments[1].equals("slow");
        long ends = System.nanoTime() + Long.parseLong(arguments[2]) * 1_000_000_000L;
        // An idle pool beside them: its workers wait through the same classes.
        ExecutorService pool = Executors.newFixedThreadPool(2);
        pool.submit(() -> {});
        Thread orders = new Thread(() -> {
            while (System.nanoTime() < ends) {
                changeTable(monitor, 0);
                rest(2);
            }
        }, "orders");
        Thread audit = new Thread(() -> {
            while (System.nanoTime() < ends) {
                changeTable(monitor, slow ? 20 : 0);
                rest(slow ? 5 : 20);
            }
        }, "audit");
        orders.start();
        audit.start();
        orders.join();
        audit.join();
        pool.shutdown();
    }
}
