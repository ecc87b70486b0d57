// SPDX-License-Identifier: Apache-2.0
import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** An HTTP server on a free port, with a pool of four threads and a timer that fires once a second. */
public class Server {
    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            exchange.sendResponseHeaders(204, -1);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        Executors.newScheduledThreadPool(1).scheduleAtFixedRate(() -> {}, 1, 1, TimeUnit.SECONDS);
        server.start();
    }
}
