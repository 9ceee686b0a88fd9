import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/** Echo by java.nio: PORT SELECTORS. Each selector has a thread, and its share of the connections. */
public final class Selectors {
    public static void main(String[] arguments) throws IOException {
        Selector[] selectors = new Selector[Integer.parseInt(arguments[1])];
        for (int i = 0; i < selectors.length; i++) {
            Selector selector = selectors[i] = Selector.open();
            new Thread(() -> echo(selector)).start();
        }
        ServerSocketChannel server = ServerSocketChannel.open();
        server.bind(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 4096);
        for (int i = 0;; i++) {
            SocketChannel connection = server.accept();
            connection.setOption(StandardSocketOptions.TCP_NODELAY, true);
            connection.configureBlocking(false);
            connection.register(selectors[i % selectors.length], SelectionKey.OP_READ);
            selectors[i % selectors.length].wakeup();
        }
    }

    private static void echo(Selector selector) {
        ByteBuffer bytes = ByteBuffer.allocateDirect(4096);
        try {
            while (true) {
                selector.select(key -> answer(key, bytes));
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The messages are far smaller than any buffer: a write takes all of it. */
    private static void answer(SelectionKey key, ByteBuffer bytes) {
        SocketChannel connection = (SocketChannel) key.channel();
        try {
            bytes.clear();
            if (connection.read(bytes) < 0) {
                connection.close();
                return;
            }
            bytes.flip();
            while (bytes.hasRemaining()) {
                connection.write(bytes);
            }
        } catch (IOException reset) {
            key.cancel();
        }
    }
}
