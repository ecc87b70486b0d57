// SPDX-License-Identifier: Apache-2.0
// A service that reads a small file fifty times a second, beside logins that derive a key for 150 ms and more each.
//
// usage: pool.js together|apart SECONDS. With together, four logins at a time keep all threads of libuv's pool;
// else there is one login at a time and a pause after each, and the other threads are idle: on a machine with two CPUs,
// one that never ends would keep the event loop waiting for a CPU.
const crypto = require('crypto');
const fs = require('fs');

const [, , how, seconds] = process.argv;
const TOGETHER = how === 'together';
const LOGINS = TOGETHER ? 4 : 1;
const ROUNDS = 200000;
const PAUSE_MS = 600;

const next = TOGETHER ? () => login() : () => setTimeout(login, PAUSE_MS);
const login = () => crypto.pbkdf2('password', 'salt', ROUNDS, 64, 'sha512', next);
for (let started = 0; started < LOGINS; started++) login();

const read = () => fs.readFile(__filename, () => setTimeout(read, 20));
read();

setTimeout(() => process.exit(0), Number(seconds) * 1000);
