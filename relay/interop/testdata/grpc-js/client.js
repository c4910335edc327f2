// A gRPC client that finds its backends by xDS and says which one answers.
//
//   GRPC_XDS_BOOTSTRAP=… node client.js xds:///api /service/method
//
// It calls the method over and over, with empty requests, and prints the answer
// when it is another than the last: a line of text. A call that fails is printed
// as "error: …". It closes its channel and ends when its input ends.
'use strict';

const grpc = require('@grpc/grpc-js');
require('@grpc/grpc-js-xds').register();

const [target, method] = process.argv.slice(2);
const pauseMs = 5; // between two calls
const closeMs = 200; // for the last requests, after which timers would hold the process for 10 s
const patienceMs = 20_000; // of one call

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
