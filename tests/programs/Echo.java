import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Echo over java.net (a thread for each connection) and over java.nio (a selector).
 * usage: Echo server|nio-server|client|close|spawn|available PORT CONNECTIONS
 */
public final class Echo {
    private static final int ROUNDS = 150;

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        int connections = Integer.parseInt(arguments[2]);
        switch (arguments[0]) {
            case "server" -> serve(port, connections);
            case "nio-server" -> select(port, connections);
            case "client" -> ask(port, connections);
            case "close" -> closeUnderReader(port);
            case "spawn" -> spawn(port);
            case "available" -> askWhatIsThere(port);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    /** A dialogue, in the midst of which the first line of standard input starts a program, which inherits nothing of it. The second ends it. */
    private static void spawn(int port) throws Exception {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            byte[] message = new byte[64];
            for (int lines = 0; lines < 2; ) {
                socket.getOutputStream().write(message);
                socket.getInputStream().readNBytes(message, 0, message.length);
                if (System.in.available() > 0) {
                    System.in.read();
                    lines++;
                    if (lines == 1) System.out.println("spawned " + new ProcessBuilder("true").start().waitFor());
                }
            }
        }
    }

    /** Reads that wait, so that a lane opens; then no call looks at the socket but available(), until it tells of all that is there. */
    private static void askWhatIsThere(int port) throws Exception {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            byte[] message = new byte[50];
            for (int round = 0; round < 3000; round++) {
                socket.getOutputStream().write(message);
                while (round % 100 > 20 && socket.getInputStream().available() < message.length) Thread.onSpinWait();
                socket.getInputStream().readNBytes(message, 0, message.length);
            }
        }
        System.out.println("all were available");
    }

    private static void serve(int port, int connections) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        try (ServerSocket server = new ServerSocket(port, 128, InetAddress.getByName("127.0.0.1"))) {
            for (int i = 0; i < connections; i++) {
                Socket socket = server.accept();
                threads.submit(() -> {
                    try (socket) {
                        socket.setTcpNoDelay(true);
                        socket.getInputStream().transferTo(socket.getOutputStream());
                    }
                    return null;
                });
            }
        }
        threads.shutdown();
    }

    private static void select(int port, int connections) throws IOException {
        try (Selector selector = Selector.open(); ServerSocketChannel server = ServerSocketChannel.open()) {
            server.bind(new InetSocketAddress("127.0.0.1", port), 128).configureBlocking(false);
            server.register(selector, SelectionKey.OP_ACCEPT);
            int left = connections;
            while (left > 0) {
                selector.select();
                for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); keys.remove()) {
                    SelectionKey key = keys.next();
                    if (!key.isValid()) continue;
                    if (key.isAcceptable()) {
                        SocketChannel accepted = server.accept();
                        accepted.configureBlocking(false);
                        accepted.socket().setTcpNoDelay(true);
                        accepted.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(32768));
                    } else if (!echo(key)) {
                        key.channel().close();
                        left--;
                    }
                }
            }
        }
    }

    /** Moves what can be moved; false at the end of the stream. */
    private static boolean echo(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(buffer) < 0) return false;
        buffer.flip();
        channel.write(buffer);
        buffer.compact();
        key.interestOps((buffer.position() > 0 ? SelectionKey.OP_WRITE : 0)
                | (buffer.hasRemaining() ? SelectionKey.OP_READ : 0));
        return true;
    }

    private static void ask(int port, int connections) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(connections);
        List<Callable<String>> talks = new ArrayList<>();
        for (int i = 0; i < connections; i++) {
            int index = i;
            talks.add(() -> talk(port, index));
        }
        for (Future<String> hash : threads.invokeAll(talks)) System.out.println(hash.get());
        threads.shutdown();
    }

    private static String talk(int port, int index) throws Exception {
        Random source = new Random(index);
        MessageDigest total = MessageDigest.getInstance("SHA-256");
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setTcpNoDelay(true);
            InputStream in = socket.getInputStream();
            for (int round = 0; round < ROUNDS; round++) {
                byte[] message = new byte[1 + source.nextInt(round % 4 == 0 ? 30000 : 800)];
                source.nextBytes(message);
                socket.getOutputStream().write(message);
                byte[] back = in.readNBytes(message.length);
                if (!Arrays.equals(back, message)) throw new IllegalStateException("connection " + index + ": wrong echo");
                total.update(back);
            }
            socket.shutdownOutput();
            if (in.read() != -1) throw new IllegalStateException("connection " + index + ": bytes after the end");
        }
        return HexFormat.of().formatHex(total.digest());
    }

    /** Closes a socket under a thread that reads it: the JDK does dup2() and a signal, and counts on EINTR. */
    private static void closeUnderReader(int port) throws Exception {
        Socket socket = new Socket("127.0.0.1", port);
        socket.setTcpNoDelay(true);
        byte[] message = new byte[1000];
        for (int round = 0; round < 2000; round++) {
            socket.getOutputStream().write(message);
            socket.getInputStream().readNBytes(message.length);
        }
        Thread reader = new Thread(() -> {
            try {
                System.out.println("read: " + socket.getInputStream().read());
            } catch (SocketException closed) {
                System.out.println("read: " + closed.getMessage());
            } catch (IOException other) {
                System.out.println("read: unexpected " + other);
            }
        });
        reader.start();
        Thread.sleep(200);
        socket.close();
        reader.join(10_000);
        System.out.println("reader ended: " + !reader.isAlive());
        System.exit(reader.isAlive() ? 1 : 0);
    }
}
