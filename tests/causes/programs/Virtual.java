// SPDX-License-Identifier: Apache-2.0
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A hundred virtual threads. JDK 17, which compiles this, has none: so their pool is made by its name.
 *
 * usage: Virtual pinned|parked SECONDS. With pinned, each sleeps for 50 ms in `synchronized`, which keeps its carrier.
 */
public class Virtual {
    static void rest(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    static void serve(boolean pinned) {
        Object session = new Object();
        while (true) {
            rest(ThreadLocalRandom.current().nextInt(1_000) + 500);
            if (pinned) {
                synchronized (session) {
                    rest(50);
                }
            } else {
                rest(50);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        boolean pinned = arguments[0].equals("pinned");
        ExecutorService tasks =
            (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        for (int task = 0; task < 100; task++) {
            tasks.submit(() -> serve(pinned));
        }
        rest(Integer.parseInt(arguments[1]) * 1_000);
        System.exit(0);
    }
}
