// SPDX-License-Identifier: Apache-2.0

// Busy with sorting, maps, formatting, goroutines and garbage.
package main

import (
	"fmt"
	"sort"
	"strings"
	"sync"
)

type order struct {
	name  string
	price float64
}

func orders(seed *uint64) []order {
	all := make([]order, 200)
	for i := range all {
		*seed = *seed*6364136223846793005 + 1442695040888963407
		all[i] = order{fmt.Sprintf("order-%d", *seed>>33), float64(*seed >> 20)}
	}
	return all
}

//go:noinline
func recurse(depth int, text string) int {
	if depth == 0 {
		return len(strings.ToUpper(text))
	}
	return recurse(depth-1, text+"x") + 1
}

func work(seed uint64, total *int, lock *sync.Mutex) {
	for {
		all := orders(&seed)
		sort.Slice(all, func(a, b int) bool { return all[a].price < all[b].price })
		book := map[string]float64{}
		for _, one := range all {
			book[one.name] += one.price
		}
		lock.Lock()
		*total += len(book) + recurse(30, all[0].name)
		lock.Unlock()
	}
}

func main() {
	total, lock := 0, sync.Mutex{}
	go work(7, &total, &lock)
	work(42, &total, &lock)
}
