# Turns what run.sh measured into peers.md (stdout) and a picture a workload in `folder`.
#
# Input: "tool NAME TITLE", "absent NAME WHY", "workload NAME TITLE", "missing WORKLOAD - WHY", and
# "result WORKLOAD TOOL METRIC VALUE".

function rest(from,   i, text) {
    for (i = from; i <= NF; i++)
        text = text (i > from ? " " : "") $i
    return text
}

# Sorts the numbers of `text` into `sorted`; returns how many there are.
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

# The median in proportion to that of nothing, with its spread; a dash where it was not measured.
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

function escape(text) {
    gsub(/&/, "\\&amp;", text)
    gsub(/</, "\\&lt;", text)
    return text
}

# Bars of the mean slowdown, a row a tool.
function draw(workload,   file, i, y, x, height, widest, key, base) {
    base = workload " nothing mean"
    if (!(base in values))
        return
    file = folder "/" workload ".svg"
    for (i = 1; i <= tools; i++) {
        key = workload " " tool[i] " mean"
        if (key in values && most(key) / median(base) > widest)
            widest = most(key) / median(base)
    }
    height = 44 + 24 * tools
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"%d\" font-family=\"sans-serif\" font-size=\"13\">\n", height > file
    printf "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/><text x=\"10\" y=\"22\" font-weight=\"bold\">%s: times as long as with nothing (median, least to most)</text>\n", escape(workload_title[workload]) > file
    for (i = 1; i <= tools; i++) {
        key = workload " " tool[i] " mean"
        y = 40 + 24 * (i - 1)
        printf "<text x=\"10\" y=\"%d\">%s</text>\n", y + 13, escape(tool_title[tool[i]]) > file
        if (!(key in values)) {
            printf "<text x=\"300\" y=\"%d\" fill=\"gray\">not measured</text>\n", y + 13 > file
            continue
        }
        x = 380 / widest
        printf "<rect x=\"300\" y=\"%d\" width=\"%.1f\" height=\"16\" fill=\"%s\"/>\n", y, x * median(key) / median(base), tool[i] == "wallprof" ? "#d9480f" : "#adb5bd" > file
        printf "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"black\"/>\n", 300 + x * least(key) / median(base), 300 + x * most(key) / median(base), y + 8, y + 8 > file
        printf "<text x=\"690\" y=\"%d\">%.2f</text>\n", y + 13, median(key) / median(base) > file
    }
    print "</svg>" > file
    close(file)
}

$1 == "tool" { tool[++tools] = $2; tool_title[$2] = rest(3) }
$1 == "absent" { absent[$2] = rest(3) }
$1 == "workload" { workload[++workloads] = $2; workload_title[$2] = rest(3) }
$1 == "missing" { missing[$2] = rest(4) }
$1 == "result" { values[$2 " " $3 " " $4] = values[$2 " " $3 " " $4] " " $5 }

END {
    print "# wallprof beside its peers"
    print ""
    print "Written by `benches/peers/run.sh -r " rounds " -s " seconds "` on " day ", " machine "."
    print ""
    print "Each workload ran for about " seconds " s beside each tool in each of " rounds " rounds, everything interleaved. What a workload"
    print "took is in proportion to the median with nothing beside it, with the least and the most; P99 and P99.9 are its own latencies."
    print "CPU is the tool's own process; what its probes cost is in the workload's slowdown."
    for (w = 1; w <= workloads; w++) {
        name = workload[w]
        print ""
        print "## " workload_title[name]
        print ""
        if (name in missing) {
            print "Not run: " missing[name] "."
            continue
        }
        print "| | mean | P99 | P99.9 | CPU of the tool | written |"
        print "| --- | ---: | ---: | ---: | ---: | ---: |"
        for (i = 1; i <= tools; i++) {
            key = name " " tool[i]
            if (!((key " mean") in values)) {
                print "| " tool_title[tool[i]] " | not run: " (absent[tool[i]] ? absent[tool[i]] : "no result") " | | | | |"
                continue
            }
            print "| " tool_title[tool[i]] " | " ratio(name, tool[i], "mean") " | " ratio(name, tool[i], "p99") " | " \
                ratio(name, tool[i], "p999") " | " number(key " cpu", "%.1f %%") " | " number(key " kib", "%.0f KiB/s") " |"
        }
        print ""
        print "![mean](" name ".svg)"
        draw(name)
    }
    print ""
    print "## From the recording to a picture, and whole stacks"
    print ""
    print "One recording of redis-benchmark. Whole: the share of user samples whose outermost frame is one that programs and threads begin in. In memory: the most that one process took for the picture."
    print ""
    print "| | flame graph after | in memory | whole stacks |"
    print "| --- | ---: | ---: | ---: |"
    for (i = 1; i <= tools; i++)
        if (("picture " tool[i] " whole") in values)
            print "| " tool_title[tool[i]] " | " number("picture " tool[i] " ms", "%.0f ms") " | " number("picture " tool[i] " mib", "%.0f MiB") " | " number("picture " tool[i] " whole", "%.1f %%") " |"
}
