// SPDX-License-Identifier: Apache-2.0
// Four threads that take orders and two that run reports share the connections of a pool (Commons Pool, as DBCP and Jedis
// have it).
//
// usage: Lending few|enough SECONDS. With few, there are two connections; else there are six.
import org.apache.commons.pool2.BasePooledObjectFactory;
import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.DefaultPooledObject;
import org.apache.commons.pool2.impl.GenericObjectPool;

public class Lending {
    static GenericObjectPool<Object> pool;
    static long ends;

    static void rest(long milliseconds) throws InterruptedException {
        Thread.sleep(milliseconds);
    }

    static void takeOrder() throws Exception {
        Object connection = pool.borrowObject();
        pool.returnObject(connection);
    }

    static void runReport() throws Exception {
        Object connection = pool.borrowObject();
        rest(30);
        pool.returnObject(connection);
    }

    interface Job {
        void run() throws Exception;
    }

    static void repeat(String name, Job job) {
        new Thread(() -> {
            try {
                while (System.nanoTime() < ends) {
                    job.run();
                    rest(5);
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
        }, name).start();
    }

    public static void main(String[] arguments) {
        pool = new GenericObjectPool<>(new BasePooledObjectFactory<>() {
            @Override
            public Object create() {
                return new Object();
            }

            @Override
            public PooledObject<Object> wrap(Object connection) {
                return new DefaultPooledObject<>(connection);
            }
        });
        int connections = arguments[0].equals("few") ? 2 : 6;
        pool.setMaxTotal(connections);
        pool.setMaxIdle(connections);
        ends = System.nanoTime() + Long.parseLong(arguments[1]) * 1_000_000_000L;
        for (int thread = 0; thread < 2; thread++) repeat("report-" + thread, Lending::runReport);
        for (int thread = 0; thread < 4; thread++) repeat("order-" + thread, Lending::takeOrder);
    }
}
