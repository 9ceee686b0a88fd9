// Echo over node's net module.
//   node echo.js server PORT CONNECTIONS
//   node echo.js client PORT CONNECTIONS
'use strict';
const net = require('net');
const crypto = require('crypto');
const [role, port, connections] = [process.argv[2], +process.argv[3], +process.argv[4]];
const ROUNDS = 150;

function serve() {
  let left = connections;
  const server = net.createServer((socket) => {
    socket.setNoDelay(true);
    socket.pipe(socket);
    socket.on('close', () => {
      if (--left === 0) server.close();
    });
  });
  server.listen(port, '127.0.0.1');
}

// The same bytes in every run, made by a keyed cipher.
function source(seed) {
  const cipher = crypto.createCipheriv('aes-128-ctr', Buffer.alloc(16, seed), Buffer.alloc(16));
  return (count) => cipher.update(Buffer.alloc(count));
}

function talk(index) {
  return new Promise((resolve, reject) => {
    const bytes = source(index);
    const total = crypto.createHash('sha256');
    const socket = net.connect({ port, host: '127.0.0.1', noDelay: true });
    let round = 0;
    let wanted;
    let received = 0;
    const next = () => {
      if (round++ === ROUNDS) return socket.end();
      wanted = bytes([1, 100, 3000, 40000][round % 4] + index);
      received = 0;
      socket.write(wanted);
    };
    socket.on('connect', next);
    socket.on('data', (data) => {
      if (data.compare(wanted, received, received + data.length) !== 0) {
        return reject(new Error(`connection ${index}: the echo is not what was sent`));
      }
      total.update(data);
      received += data.length;
      if (received === wanted.length) next();
    });
    socket.on('error', reject);
    socket.on('close', () => resolve(total.digest('hex')));
  });
}

if (role === 'server') {
  serve();
} else {
  Promise.all(Array.from({ length: connections }, (_, index) => talk(index))).then(
    (hashes) => console.log(hashes.join('\n')),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}
