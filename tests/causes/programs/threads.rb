# SPDX-License-Identifier: Apache-2.0
# What the programs of threads have in common, which are started as PROGRAM busy|alone SECONDS. With `busy`, the thread
# `report` computes and keeps the GVL.
HOW = ARGV[0]
ENDS = Process.clock_gettime(Process::CLOCK_MONOTONIC) + ARGV[1].to_f
THREADS = []

def goes_on = Process.clock_gettime(Process::CLOCK_MONOTONIC) < ENDS

def thread(name)
  THREADS << Thread.new do
    Thread.current.name = name
    yield
  end
end

if HOW == 'busy'
  thread('report') do
    sum = 0
    sum += 1 while goes_on
  end
end
at_exit { THREADS.each(&:join) }
