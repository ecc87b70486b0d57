# Threads that sleep for 5 ms, and one that takes what they put into a queue. With `busy`, beside one that computes and
# keeps the GVL.
#
# usage: sleepers.rb busy|alone SECONDS
how, seconds = ARGV[0], ARGV[1].to_f
ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
threads = []
queue = Queue.new
if how == 'busy'
  threads << Thread.new do
    Thread.current.name = 'report'
    sum = 0
    sum += 1 while now.call < ends
  end
end
2.times do
  threads << Thread.new do
    Thread.current.name = 'timer'
    sleep 0.005 while now.call < ends
  end
end
threads << Thread.new do
  Thread.current.name = 'producer'
  while now.call < ends
    sleep 0.005
    queue << 1
  end
  queue << nil
end
threads << Thread.new do
  Thread.current.name = 'consumer'
  nil while queue.pop
end
threads.each(&:join)
