// SPDX-License-Identifier: Apache-2.0
// Busy with objects, sorting and JSON, and asleep in between.

function make(n) {
    const items = [];
    for (let i = 0; i < n; i++) items.push({ name: `item-${(i * 7919) % n}`, price: i / 3 });
    return items;
}

function work() {
    const items = make(3000).sort((a, b) => (a.name < b.name ? -1 : 1));
    return JSON.parse(JSON.stringify(items)).length;
}

setInterval(work, 15);
