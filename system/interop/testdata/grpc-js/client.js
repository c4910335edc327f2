// A gRPC client that finds its backends by xDS and prints which one answers.
//
//   GRPC_XDS_BOOTSTRAP=… node client.js xds:///api /service/method
//
// It calls the method repeatedly with empty requests. It prints an answer, which
// must be one line of text, when it differs from the previous one. For a failed
// call it prints "error: …". It closes its channel and exits when its standard
// input ends.
'use strict';

const grpc = require('@grpc/grpc-js');
require('@grpc/grpc-js-xds').register();

const [target, method] = process.argv.slice(2);
const pauseMs = 5; // between two calls
const closeMs = 200; // for the last requests; without an explicit exit, timers delay the end by 10 s
const patienceMs = 20_000; // timeout of one call

const client = new grpc.Client(target, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata({waitForReady: true});
let last = '';
let ended = false;

function call() {
  if (ended) {
    return;
  }
  client.makeUnaryRequest(method, (m) => m, (m) => m, Buffer.alloc(0), metadata, {deadline: Date.now() + patienceMs}, (err, answer) => {
    if (ended) {
      return;
    }
    const line = err ? `error: ${err.message}` : answer.toString();
    if (line !== last) {
      console.log(line);
      last = line;
    }
    setTimeout(call, pauseMs);
  });
}

process.stdin.on('end', () => {
  ended = true;
  client.close();
  setTimeout(() => process.exit(0), closeMs);
});
process.stdin.resume();
call();
