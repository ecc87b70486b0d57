// SPDX-License-Identifier: Apache-2.0
// An HTTP server that asks itself for a page every 5 ms, and for `path` every `every` ms; `handle` answers the latter.
const http = require('http');

module.exports = function serve(path, every, seconds, handle) {
    const server = http.createServer((request, response) => {
        if (request.url === path) handle(response);
        else response.end('page');
    });
    const agent = new http.Agent({ keepAlive: true });
    server.listen(0, '127.0.0.1', () => {
        const ask = (path) => {
            const { port } = server.address();
            const request = http.get({ agent, host: '127.0.0.1', port, path }, (answer) => answer.resume());
            request.on('error', () => {});
        };
        setInterval(() => ask('/'), 5);
        setInterval(() => ask(path), every);
        setTimeout(() => process.exit(0), Number(seconds) * 1000);
    });
};
