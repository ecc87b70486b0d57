// SPDX-License-Identifier: Apache-2.0
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/**
 * A server with one event loop, and three clients that ask every 10 ms.
 *
 * usage: Loop blocked|free SECONDS. With blocked, each twentieth answer waits for 40 ms in the loop.
 */
public class Loop {
    static final int BYTES = 16;

    final boolean blocked;
    final ByteBuffer buffer = ByteBuffer.allocate(256);
    long answers;

    Loop(boolean blocked) {
        this.blocked = blocked;
    }

    void lookUpCustomer() throws InterruptedException {
        Thread.sleep(40);
    }

    void answer(SocketChannel client) throws IOException, InterruptedException {
        answers++;
        if (blocked && answers % 20 == 0) {
            lookUpCustomer();
        }
        buffer.flip();
        client.write(buffer);
    }

    void serve(ServerSocketChannel server) throws IOException, InterruptedException {
        Selector selector = Selector.open();
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel client = server.accept();
                    client.configureBlocking(false);
                    client.register(selector, SelectionKey.OP_READ);
                    continue;
                }
                SocketChannel client = (SocketChannel) key.channel();
                buffer.clear();
                if (client.read(buffer) < 0) {
                    client.close();
                } else {
                    answer(client);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    interface Work {
        void run() throws Exception;
    }

    static void start(String name, Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
    }

    static void ask(int port) throws Exception {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
            while (true) {
                socket.getOutputStream().write(new byte[BYTES]);
                socket.getInputStream().readNBytes(BYTES);
                Thread.sleep(10);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        ServerSocketChannel server = ServerSocketChannel.open();
        server.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        int port = server.socket().getLocalPort();
        start("io-loop", () -> new Loop(args[0].equals("blocked")).serve(server));
        for (int client = 0; client < 3; client++) {
            start("client-" + client, () -> ask(port));
        }
        Thread.sleep(Long.parseLong(args[1]) * 1_000);
    }
}
