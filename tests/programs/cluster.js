// A cluster of workers behind one port.
//   node cluster.js accept PORT   the primary accepts and hands each connection to a worker (the default, round robin)
//   node cluster.js later PORT    the primary serves the first lines itself and hands the connection over in mid-stream
// Each line "N\n" is answered with the first N bytes of SHAKE-256 of N in decimal (lines_client.py). Ends on SIGTERM.
'use strict';
const cluster = require('cluster');
const crypto = require('crypto');
const net = require('net');
const { fork } = require('child_process');
const [how, port] = [process.argv[2], +process.argv[3]];
const WORKERS = 3;
const OWN_LINES = 100;

function answer(socket, line) {
  socket.write(crypto.createHash('shake256', { outputLength: +line }).update(line).digest());
}

// Serves lines; after `most` of them calls `done` with the socket and the next line instead: its client waits for the
// answer, so that nothing is under way at the handover.
function serve(socket, most = Infinity, done) {
  let pending = '';
  let served = 0;
  socket.setNoDelay(true);
  const take = (data) => {
    pending += data;
    for (let at = pending.indexOf('\n'); at >= 0; at = pending.indexOf('\n')) {
      const line = pending.slice(0, at);
      pending = pending.slice(at + 1);
      if (served++ === most) {
        socket.off('data', take);
        // Without a listener it would go on reading, and lose what comes before the worker has it.
        socket._handle.readStop();
        return done(socket, line);
      }
      answer(socket, line);
    }
  };
  socket.on('data', take);
  socket.on('end', () => socket.end());
  socket.on('error', () => socket.destroy());
}

if (how === 'accept') {
  if (cluster.isPrimary) {
    for (let n = 0; n < WORKERS; n++) cluster.fork();
    process.on('SIGTERM', () => cluster.disconnect(() => process.exit(0)));
  } else {
    net.createServer((socket) => serve(socket)).listen(port, '127.0.0.1');
    process.on('SIGTERM', () => {}); // the primary says when
    process.on('disconnect', () => process.exit(0));
  }
} else if (how === 'later') {
  const workers = Array.from({ length: WORKERS }, () => fork(__filename, ['worker', '0']));
  let turn = 0;
  net.createServer((socket) => serve(socket, OWN_LINES, (it, line) => workers[turn++ % WORKERS].send(line, it)))
    .listen(port, '127.0.0.1');
  process.on('SIGTERM', () => {
    for (const worker of workers) worker.disconnect();
    process.exit(0);
  });
} else {
  process.on('message', (line, socket) => {
    answer(socket, line);
    serve(socket);
  });
  process.on('SIGTERM', () => {});
  process.on('disconnect', () => process.exit(0));
}
