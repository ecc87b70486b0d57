// SPDX-License-Identifier: Apache-2.0
// An HTTP server that asks itself every few milliseconds, and every 150 ms for something that takes 60 ms.
//
// usage: blocking.js spawn|atomics block|wait SECONDS. With spawn a child process finds it, with atomics a worker.
// With block the server's thread waits for it in a call; with wait it serves others meanwhile.
const { spawn, spawnSync } = require('child_process');
const { Worker } = require('worker_threads');
const serve = require('./serve_self');

const [, , what, how, seconds] = process.argv;
const CHILD = ['sleep', ['0.06']];
// 0: the worker waits for a question; 1: it has one, and is to notify; 2: it has one, and is to post a message.
const cell = new Int32Array(new SharedArrayBuffer(4));
const WORKER = `
    const { parentPort, workerData: cell } = require('worker_threads');
    const slept = new Int32Array(new SharedArrayBuffer(4));
    for (;;) {
        Atomics.wait(cell, 0, 0);
        const asked = Atomics.load(cell, 0);
        Atomics.wait(slept, 0, 0, 60);
        Atomics.store(cell, 0, 0);
        if (asked === 1) Atomics.notify(cell, 0); else parentPort.postMessage('done');
    }`;
const worker = what === 'atomics' ? new Worker(WORKER, { eval: true, workerData: cell }) : null;

function find(done) {
    if (what === 'spawn' && how === 'block') {
        spawnSync(...CHILD);
        done();
    } else if (what === 'spawn') {
        spawn(...CHILD).on('exit', done);
    } else {
        Atomics.store(cell, 0, how === 'block' ? 1 : 2);
        Atomics.notify(cell, 0);
        if (how !== 'block') return worker.once('message', done);
        Atomics.wait(cell, 0, 1);
        done();
    }
}

serve('/find', 150, seconds, (response) => find(() => response.end('found')));
