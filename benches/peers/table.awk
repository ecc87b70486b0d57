# Writes the results of run.sh as peers.md (stdout) and as one picture a workload in `folder`.
#
# Input: "tool NAME TITLE", "absent NAME WHY", "undrawn NAME WHY", "workload NAME TITLE", "missing WORKLOAD - WHY", and
# "result WORKLOAD TOOL METRIC VALUE"; the workload `picture` is the way to a picture.

function rest(from,   i, text) {
    for (i = from; i <= NF; i++)
        text = text (i > from ? " " : "") $i
    return text
}

# Sorts the numbers of `text` into `sorted`; returns their number.
function sort_numbers(text, sorted,   n, i, j, t) {
    n = split(text, sorted, " ")
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && sorted[j - 1] + 0 > sorted[j] + 0; j--) {
            t = sorted[j]; sorted[j] = sorted[j - 1]; sorted[j - 1] = t
        }
    return n
}

function median(key,   sorted, n) {
    n = sort_numbers(values[key], sorted)
    return n % 2 ? sorted[(n + 1) / 2] + 0 : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
}

function least(key,   sorted) {
    sort_numbers(values[key], sorted)
    return sorted[1] + 0
}

function most(key,   sorted) {
    return sorted[sort_numbers(values[key], sorted)] + 0
}

# The median in proportion to the median without a tool, with its spread; a dash where it was not measured.
function ratio(workload, tool, metric,   key, base) {
    key = workload " " tool " " metric
    base = workload " nothing " metric
    if (!(key in values) || !(base in values) || median(base) <= 0)
        return "–"
    if (tool == "nothing")
        return sprintf("%.4g µs (%.4g–%.4g)", median(key), least(key), most(key))
    return sprintf("%.2f (%.2f–%.2f)", median(key) / median(base), least(key) / median(base), most(key) / median(base))
}

function number(key, format) {
    return key in values ? sprintf(format, median(key)) : "–"
}

# The median with the least and the most.
function spread(key, format, unit) {
    if (!(key in values))
        return "–"
    return sprintf(format " " unit " (" format "–" format ")", median(key), least(key), most(key))
}

# The CPU time of the tool's process, and of its collector.
function cpu_of(at,   text) {
    text = number(at " cpu", "%.1f %%")
    return (at " beside") in values ? text " + " number(at " beside", "%.1f %%") : text
}

# --- pictures ---

function escape(text) {
    gsub(/&/, "\\&amp;", text)
    gsub(/</, "\\&lt;", text)
    return text
}

# A bar a tool of one metric, between `left` and `left` + 210, medians with their spread; `unit` is what one is.
function draw_panel(file, workload, metric, title, left, unit, format,   i, key, y, x, widest) {
    for (i = 1; i <= tools; i++) {
        key = workload " " tool[i] " " metric
        if (key in values && most(key) > widest)
            widest = most(key)
    }
    printf "<text x=\"%d\" y=\"44\" fill=\"#495057\">%s</text>\n", left, title > file
    if (!(widest > 0)) {
        printf "<text x=\"%d\" y=\"71\" fill=\"gray\">not measured</text>\n", left > file
        return
    }
    x = 160 / widest
    for (i = 1; i <= tools; i++) {
        key = workload " " tool[i] " " metric
        y = 56 + 24 * (i - 1)
        if (!(key in values))
            continue
        printf "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"16\" fill=\"%s\"/>\n", left, y + 2, x * median(key), tool[i] == "wallprof" ? "#d9480f" : "#adb5bd" > file
        printf "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"black\"/>\n", left + x * least(key), left + x * most(key), y + 10, y + 10 > file
        printf "<text x=\"%d\" y=\"%d\">" format "</text>\n", left + 168, y + 15, median(key) / unit > file
    }
}

# Mean and tail in proportion to those with nothing, and the tool's CPU.
function draw(workload,   file, i, base, tail) {
    base = workload " nothing mean"
    tail = workload " nothing p999"
    if (!(base in values))
        return
    file = folder "/" workload ".svg"
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"950\" height=\"%d\" font-family=\"sans-serif\" font-size=\"13\">\n", 66 + 24 * tools > file
    printf "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/><text x=\"10\" y=\"22\" font-weight=\"bold\">%s</text>\n", escape(workload_title[workload]) > file
    for (i = 1; i <= tools; i++)
        printf "<text x=\"10\" y=\"%d\"%s>%s</text>\n", 71 + 24 * (i - 1), ((workload " " tool[i] " mean") in values) ? "" : " fill=\"gray\"", escape(tool_title[tool[i]]) > file
    draw_panel(file, workload, "mean", "mean, times that with nothing", 290, median(base), "%.2f")
    draw_panel(file, workload, "p999", "P99.9, times that with nothing", 510, tail in values ? median(tail) : 1, "%.2f")
    draw_panel(file, workload, "cpu", "CPU of the tool, % of one", 730, 1, "%.1f")
    print "</svg>" > file
    close(file)
}

# --- where a peer does better ---

# The percentage by which the peer's median is better than wallprof's. 0 if the difference is at most half the sum of both
# spreads, or less than 2 %. `sign` is 1 where less is better, else -1.
function ahead(workload, peer, metric, sign,   mine, theirs, by, noise) {
    mine = workload " wallprof " metric
    theirs = workload " " peer " " metric
    if (!(mine in values) || !(theirs in values))
        return 0
    by = sign * (median(mine) - median(theirs))
    noise = (most(mine) - least(mine) + most(theirs) - least(theirs)) / 2
    if (by <= 0 || by <= noise || by < median(mine) * 0.02)
        return 0
    return median(mine) > 0 ? 100 * by / median(mine) : 100
}

# Prints a line with the peers that are ahead in a metric, each with its median and the difference; no line if there are
# none. Returns whether it printed.
function print_ahead(workload, title, metric, name, sign, format,   i, by, peers) {
    for (i = 1; i <= tools; i++) {
        if (tool[i] == "nothing" || tool[i] == "wallprof" || !(by = ahead(workload, tool[i], metric, sign)))
            continue
        peers = peers (peers ? "; " : "") tool_title[tool[i]] " " sprintf(format, median(workload " " tool[i] " " metric)) sprintf(" (%.0f %%)", by)
    }
    if (!peers)
        return 0
    print "| " title " | " name " | " sprintf(format, median(workload " wallprof " metric)) " | " peers " |"
    return 1
}

# --- the page ---

function print_workload(name,   i, key) {
    print ""
    print "## " workload_title[name]
    print ""
    if (name in missing) {
        print "Not run: " missing[name] "."
        return
    }
    print "| | mean | P99 | P99.9 | CPU to start | while it runs | to finish | written |"
    print "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for (i = 1; i <= tools; i++) {
        key = name " " tool[i]
        if (!((key " mean") in values)) {
            print "| " tool_title[tool[i]] " | not run: " (absent[tool[i]] ? absent[tool[i]] : "no result") " | | | | | | |"
            continue
        }
        print "| " tool_title[tool[i]] " | " ratio(name, tool[i], "mean") " | " ratio(name, tool[i], "p99") " | " \
            ratio(name, tool[i], "p999") " | " number(key " start", "%.0f ms") " | " cpu_of(key) " | " number(key " finish", "%.0f ms") " | " number(key " kib", "%.4g KiB/s") " |"
    }
    print ""
    print "![mean, P99.9 and CPU](" name ".svg)"
    draw(name)
}

function print_pictures(   i, key) {
    print ""
    print "## From the recording to a picture, and whole stacks"
    print ""
    print "For each tool that can draw a flame graph, one recording of redis-benchmark is drawn " rounds " times. perf uses"
    print "`perf script` and inferno. OpenTelemetry uses the data of its collector, names from symbol tables, and"
    print "inferno. In memory: the peak of one process. Whole: the share of the stacks of redis-server and"
    print "redis-benchmark whose outermost frame starts a program or a thread. Its name identifies it, and both"
    print "programs keep it in their dynamic symbols."
    print ""
    print "| | flame graph after | in memory | whole stacks |"
    print "| --- | ---: | ---: | ---: |"
    for (i = 1; i <= tools; i++) {
        key = "picture " tool[i]
        if (tool[i] in undrawn)
            print "| " tool_title[tool[i]] " | not drawn: " undrawn[tool[i]] " | | |"
        else if ((key " ms") in values)
            print "| " tool_title[tool[i]] " | " spread(key " ms", "%.0f", "ms") " | " number(key " mib", "%.0f MiB") " | " number(key " whole", "%.1f %%") " |"
    }
}

function print_where_not_ahead(   w, name, count) {
    print ""
    print "## Where wallprof is not ahead"
    print ""
    print "The table lists each peer whose median is better than wallprof's by at least 2 % and by more than half the"
    print "sum of both spreads (most minus least), with the difference in percent of wallprof's figure. CPU is that of"
    print "the tool's own process, without a collector."
    print ""
    print "| | | wallprof | better |"
    print "| --- | --- | ---: | --- |"
    for (w = 1; w <= workloads; w++) {
        name = workload[w]
        count += print_ahead(name, workload_title[name], "mean", "mean", 1, "%.4g µs")
        count += print_ahead(name, workload_title[name], "p99", "P99", 1, "%.4g µs")
        count += print_ahead(name, workload_title[name], "p999", "P99.9", 1, "%.4g µs")
        count += print_ahead(name, workload_title[name], "cpu", "CPU", 1, "%.2f %%")
        count += print_ahead(name, workload_title[name], "start", "CPU to start", 1, "%.0f ms")
        count += print_ahead(name, workload_title[name], "finish", "CPU to finish", 1, "%.0f ms")
        count += print_ahead(name, workload_title[name], "kib", "written", 1, "%.4g KiB/s")
    }
    count += print_ahead("picture", "a picture", "ms", "time", 1, "%.0f ms")
    count += print_ahead("picture", "a picture", "mib", "memory", 1, "%.0f MiB")
    count += print_ahead("picture", "a picture", "whole", "whole stacks", -1, "%.1f %%")
    if (!count)
        print "| nowhere | | | |"
}

$1 == "tool" { tool[++tools] = $2; tool_title[$2] = rest(3) }
$1 == "absent" { absent[$2] = rest(3) }
$1 == "undrawn" { undrawn[$2] = rest(3) }
$1 == "workload" { workload[++workloads] = $2; workload_title[$2] = rest(3) }
$1 == "missing" { missing[$2] = rest(4) }
$1 == "result" { values[$2 " " $3 " " $4] = values[$2 " " $3 " " $4] " " $5 }

END {
    print "# wallprof beside its peers"
    print ""
    print "Written by `benches/peers/run.sh -r " rounds " -s " seconds " -b " settle "` on " day ","
    print machine "."
    print ""
    print "Each workload ran for about " seconds " s beside each tool in each of " rounds " rounds, interleaved. The time of a workload is"
    print "given in proportion to its median without a tool, with the least and the most. P99 and P99.9 are the"
    print "workload's own latencies."
    print ""
    print "Each tool was started " settle " s before its measurement, and spent the second half of them beside the workload. CPU"
    print "is the time of the tool's own process: until the measurement, while the workload runs, and from then to the"
    print "tool's end, when some tools do most of their processing. The cost of its probes is part of the slowdown."
    print "Written is the size of the recording per second of its whole length."
    print ""
    print "`by hand` is the set of tools that shows most of the data of wallprof: perf for CPU time with complete"
    print "stacks, perf sched for the threads that ran instead, and offcputime for waits by stack, all at once. The"
    print "other tools show less. perf record, bpftrace as profile, OpenTelemetry and sysprof show CPU time, 99 or"
    print "1,000 times a second, and no waits. perf sched, offcputime and runqlat show waits and no CPU time."
    print ""
    print "Tools with a choice sample at 99 Hz. sysprof samples 1,000 times a second with its counters on, as by"
    print "default. The OpenTelemetry profiler sends its samples to a collector and does not run without one. Here the"
    print "collector only stores the received data, compressed by gzip as it was sent, at a lower priority. Its CPU is"
    print "the figure after the +; a real collector would take more. Where root may not raise RLIMIT_MEMLOCK, which"
    print "kernels since 5.11 do not need for BPF, the call succeeds for the profiler without an effect."
    for (w = 1; w <= workloads; w++)
        print_workload(workload[w])
    print_pictures()
    print_where_not_ahead()
}
