// SPDX-License-Identifier: Apache-2.0
// An HTTP server that also asks itself every few milliseconds.
//
// usage: crypto.js sync|async SECONDS. With sync, each login derives a key on the event loop; else in a worker.
const crypto = require('crypto');
const http = require('http');

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

const server = http.createServer((request, response) => {
    if (request.url === '/login') login(response);
    else response.end('page');
});
const agent = new http.Agent({ keepAlive: true });

server.listen(0, '127.0.0.1', () => {
    const ask = (path) => {
        const request = http.get({ agent, host: '127.0.0.1', port: server.address().port, path }, (answer) =>
            answer.resume(),
        );
        request.on('error', () => {});
    };
    setInterval(() => ask('/'), 5);
    setInterval(() => ask('/login'), 200);
    setTimeout(() => process.exit(0), Number(seconds) * 1000);
});
