import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.AsynchronousCloseException;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.FileChannel;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Files by FileChannel.transferTo and transferFrom, and a channel closed under a blocked read.
 * usage: Transfer serve PORT FILE | fetch PORT FILE | close PORT -
 * A request is one byte, its answer the file's length (8 bytes) and its bytes; the server ends after one connection that
 * asked for CLOSING.
 */
public final class Transfer {
    private static final int FETCHES = 30;
    private static final byte FETCH = 1;
    private static final byte ECHO = 2;
    private static final byte CLOSING = 3;

    public static void main(String[] arguments) throws Exception {
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1]));
        switch (arguments[0]) {
            case "serve" -> serve(address, Path.of(arguments[2]));
            case "fetch" -> fetch(address, Path.of(arguments[2]));
            case "close" -> closeUnderReader(address);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void serve(InetSocketAddress address, Path path) throws IOException {
        try (ServerSocketChannel listener = ServerSocketChannel.open();
                FileChannel file = FileChannel.open(path, StandardOpenOption.READ)) {
            listener.bind(address);
            for (boolean isLast = false; !isLast; ) {
                try (SocketChannel channel = listener.accept()) {
                    isLast = answer(channel, file);
                }
            }
        }
    }

    /** Answers until the peer has nothing more to say; whether it asked for the server's end. */
    private static boolean answer(SocketChannel channel, FileChannel file) throws IOException {
        ByteBuffer request = ByteBuffer.allocate(1);
        boolean isLast = false;
        while (channel.read(request.clear()) == 1) {
            switch (request.get(0)) {
                case FETCH -> {
                    ByteBuffer length = ByteBuffer.allocate(8).putLong(0, file.size());
                    while (length.hasRemaining()) channel.write(length);
                    for (long at = 0; at < file.size(); ) at += file.transferTo(at, file.size() - at, channel);
                }
                case ECHO -> channel.write(request.flip());
                default -> isLast = true;
            }
        }
        return isLast;
    }

    private static void fetch(InetSocketAddress address, Path path) throws IOException {
        try (SocketChannel channel = SocketChannel.open(address);
                FileChannel file = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            for (int i = 0; i < FETCHES; i++) {
                ask(channel, FETCH);
                ByteBuffer length = ByteBuffer.allocate(8);
                while (length.hasRemaining()) if (channel.read(length) < 0) throw new IOException("no length");
                for (long at = 0; at < length.getLong(0); ) at += file.transferFrom(channel, at, length.getLong(0) - at);
            }
            ask(channel, CLOSING);
        }
        System.out.println("fetched " + FETCHES);
    }

    private static void ask(SocketChannel channel, byte what) throws IOException {
        channel.write(ByteBuffer.wrap(new byte[] {what}));
    }

    private static void closeUnderReader(InetSocketAddress address) throws Exception {
        SocketChannel channel = SocketChannel.open(address);
        ByteBuffer one = ByteBuffer.allocate(1);
        for (int i = 0; i < 2000; i++) {
            ask(channel, ECHO);
            channel.read(one.clear());
        }
        ask(channel, CLOSING);
        Thread reader = new Thread(() -> {
            try {
                System.out.println("read: " + channel.read(ByteBuffer.allocate(1)));
            } catch (AsynchronousCloseException closed) {
                System.out.println("read: closed");
            } catch (ClosedChannelException early) {
                System.out.println("read: closed before it began");
            } catch (IOException other) {
                System.out.println("read: unexpected " + other);
            }
        });
        reader.start();
        // Until the reader is inside its read, as far as can be seen from outside.
        while (reader.getState() != Thread.State.RUNNABLE && reader.isAlive()) Thread.onSpinWait();
        Thread.sleep(200);
        channel.close();
        reader.join(10_000);
        System.out.println("reader ended: " + !reader.isAlive());
        System.exit(reader.isAlive() ? 1 : 0);
    }
}
