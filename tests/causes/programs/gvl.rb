# A thread that compresses a page every few milliseconds, without the GVL. With `busy`, beside one that computes and
# keeps it.
#
# usage: gvl.rb busy|alone SECONDS
require 'zlib'

how, seconds = ARGV[0], ARGV[1].to_f
ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
page = 'page' * 5_000
threads = []
if how == 'busy'
  threads << Thread.new do
    Thread.current.name = 'report'
    sum = 0
    sum += 1 while now.call < ends
  end
end
threads << Thread.new do
  Thread.current.name = 'requests'
  while now.call < ends
    sleep 0.002
    Zlib::Deflate.deflate(page)
  end
end
threads.each(&:join)
