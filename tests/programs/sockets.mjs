// Echo over the sockets that a runtime has of its own: Bun.listen and Bun.connect, Deno.listen and Deno.connect.
//   RUNTIME sockets.mjs server|client PORT CONNECTIONS
const isDeno = typeof Deno !== 'undefined';
const [role, port, connections] = (isDeno ? Deno.args : process.argv.slice(2)).map((word, at) => (at ? +word : word));
const hostname = '127.0.0.1';
const ROUNDS = 100;

// A connection of Bun's, which calls back, as one that is read from and written to.
class Stream {
  arrived = [];
  isOver = false;
  sleepers = [];

  static handlers = {
    open: (socket) => socket.setNoDelay(true),
    data: (socket, bytes) => socket.data.happens(() => socket.data.arrived.push(new Uint8Array(bytes))),
    drain: (socket) => socket.data.happens(() => {}),
    end: (socket) => socket.data.happens(() => (socket.data.isOver = true)),
    close: (socket) => socket.data.happens(() => (socket.data.isOver = true)),
    error: (_socket, error) => fail(error),
  };

  happens(what) {
    what();
    this.sleepers.splice(0).forEach((wake) => wake());
  }

  next() {
    return new Promise((resolve) => this.sleepers.push(resolve));
  }

  async read() {
    while (this.arrived.length === 0 && !this.isOver) await this.next();
    return this.arrived.shift() ?? null;
  }

  async write(bytes) {
    for (let at = 0; at < bytes.length; ) {
      const written = this.socket.write(bytes.subarray(at));
      if (written < 0) fail(new Error('write to a connection that is over'));
      at += written;
      if (at < bytes.length) await this.next();
    }
  }

  close() {
    this.socket.end();
  }
}

// The same of Deno's.
class Conn {
  buffer = new Uint8Array(65536);

  constructor(conn) {
    conn.setNoDelay(true);
    this.conn = conn;
  }

  async read() {
    const count = await this.conn.read(this.buffer);
    return count === null ? null : this.buffer.slice(0, count);
  }

  async write(bytes) {
    for (let at = 0; at < bytes.length; ) at += await this.conn.write(bytes.subarray(at));
  }

  close() {
    this.conn.close();
  }
}

function fail(error) {
  console.error(error);
  (isDeno ? Deno : process).exit(1);
}

async function echo(stream) {
  for (let bytes; (bytes = await stream.read()); ) await stream.write(bytes);
  stream.close();
}

async function serve() {
  let left = connections;
  if (isDeno) {
    const listener = Deno.listen({ hostname, port });
    const served = [];
    while (left-- > 0) served.push(echo(new Conn(await listener.accept())));
    await Promise.all(served);
    return listener.close();
  }
  const open = (socket) => {
    socket.data = new Stream();
    socket.data.socket = socket;
    socket.setNoDelay(true);
    echo(socket.data).then(() => --left === 0 && listener.stop(), fail);
  };
  const listener = Bun.listen({ hostname, port, socket: { ...Stream.handlers, open } });
}

async function connect() {
  if (isDeno) return new Conn(await Deno.connect({ hostname, port }));
  const stream = new Stream();
  stream.socket = await Bun.connect({ hostname, port, socket: Stream.handlers, data: stream });
  return stream;
}

// The same bytes in every run: a linear congruential generator's.
function source(seed) {
  let state = seed;
  return (count) => Uint8Array.from({ length: count }, () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) >>> 24);
}

async function talk(index) {
  const bytes = source(index);
  const stream = await connect();
  for (let round = 0; round < ROUNDS; round++) {
    const wanted = bytes([1, 100, 3000, 20000][round % 4] + index);
    const written = stream.write(wanted);
    for (let received = 0; received < wanted.length; ) {
      const some = await stream.read();
      if (some === null) fail(new Error(`connection ${index} ends in round ${round}`));
      for (const byte of some) {
        if (byte !== wanted[received++]) fail(new Error(`connection ${index}: the echo is not what was sent`));
      }
    }
    await written;
  }
  stream.close();
  return index;
}

if (role === 'server') await serve();
else console.log((await Promise.all(Array.from({ length: connections }, (_, index) => talk(index)))).join('\n'));
