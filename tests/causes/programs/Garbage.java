// SPDX-License-Identifier: Apache-2.0
import java.util.ArrayDeque;

/**
 * A thread "orders" that serves a request every two milliseconds, beside one that loads a table.
 *
 * usage: Garbage large|small SECONDS. With large, most of the heap stays in use and the table changes all the
 * time, so that the collector has to copy and mark it.
 */
public class Garbage {
    static volatile byte[] served;

    public static void main(String[] arguments) throws Exception {
        boolean large = arguments[0].equals("large");
        long ends = System.nanoTime() + Long.parseLong(arguments[1]) * 1_000_000_000L;
        Thread orders = new Thread(() -> {
            while (System.nanoTime() < ends) {
                served = new byte[256];
                try {
                    Thread.sleep(2);
                } catch (InterruptedException interrupted) {
                    return;
                }
            }
        }, "orders");
        Thread loader = new Thread(() -> {
            ArrayDeque<Object> table = new ArrayDeque<>();
            while (System.nanoTime() < ends) {
                if (large) {
                    for (int row = 0; row < 1000; row++) {
                        table.add(new Object[] {new Object(), new Object(), new Object()});
                    }
                    while (table.size() > 2_000_000) {
                        table.poll();
                    }
                } else {
                    try {
                        Thread.sleep(20);
                    } catch (InterruptedException interrupted) {
                        return;
                    }
                }
            }
        }, "loader");
        orders.start();
        loader.start();
        orders.join();
        loader.join();
    }
}
