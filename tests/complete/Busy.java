// SPDX-License-Identifier: Apache-2.0
/** Busy with maps, strings and threads that hand work to each other. */
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;

class Busy {
    static final ArrayBlockingQueue<Map<String, Integer>> queue = new ArrayBlockingQueue<>(16);
    static volatile long total;

    static Map<String, Integer> count(long seed) {
        Map<String, Integer> counts = new HashMap<>();
        for (int i = 0; i < 20000; i++) {
            seed = seed * 6364136223846793005L + 1442695040888963407L;
            counts.merge("key-" + (seed >>> 54), 1, Integer::sum);
        }
        return counts;
    }

    public static void main(String[] arguments) throws InterruptedException {
        Thread consumer = new Thread(() -> {
            try {
                for (;;) {
                    total += queue.take().values().stream().mapToInt(Integer::intValue).sum();
                }
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            }
        }, "consumer");
        consumer.setDaemon(true);
        consumer.start();
        for (long seed = 1;; seed++) {
            queue.put(count(seed));
            Thread.sleep(1);
        }
    }
}
