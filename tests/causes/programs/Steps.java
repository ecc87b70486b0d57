// SPDX-License-Identifier: Apache-2.0
import java.util.concurrent.CyclicBarrier;

/**
 * Three threads that meet at a barrier after each step.
 *
 * usage: Steps uneven|even SECONDS. With uneven, one of them waits for 15 ms in each step.
 */
public class Steps {
    static volatile double result;

    static void computeRows() {
        double sum = 0;
        for (int row = 1; row <= 20_000; row++) {
            sum += 1.0 / row;
        }
        result = sum;
    }

    static void loadInput() throws InterruptedException {
        Thread.sleep(15);
    }

    static void solve(CyclicBarrier barrier, boolean loads, long end) {
        try {
            while (System.nanoTime() < end) {
                computeRows();
                if (loads) {
                    loadInput();
                } else {
                    Thread.sleep(10);
                }
                barrier.await();
            }
        } catch (Exception failure) {
            // Another one has ended.
        }
        System.exit(0);
    }

    public static void main(String[] args) {
        boolean uneven = args[0].equals("uneven");
        long end = System.nanoTime() + Long.parseLong(args[1]) * 1_000_000_000L;
        CyclicBarrier barrier = new CyclicBarrier(3);
        for (int part = 0; part < 3; part++) {
            boolean loads = uneven && part == 2;
            new Thread(() -> solve(barrier, loads, end), "part-" + part).start();
        }
    }
}
