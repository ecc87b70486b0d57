// SPDX-License-Identifier: Apache-2.0
// An HTTP server that also asks itself every few milliseconds.
//
// usage: crypto.js sync|async SECONDS. With sync, each login derives a key on the event loop; else in a worker.
const crypto = require('crypto');
const serve = require('./serve_self');

const [, , how, seconds] = process.argv;
const ROUNDS = 60000;

function login(response) {
    if (how === 'sync') {
        crypto.pbkdf2Sync('password', 'salt', ROUNDS, 64, 'sha512');
        response.end('in');
    } else {
        crypto.pbkdf2('password', 'salt', 1000, 64, 'sha512', () => response.end('in'));
    }
}

serve('/login', 200, seconds, login);
