# SPDX-License-Identifier: Apache-2.0
# Threads that sleep for 5 ms, and one that takes what they put into a queue. With `busy`, beside one that computes and
# keeps the GVL.
#
# usage: sleepers.rb busy|alone SECONDS
require_relative 'threads'

queue = Queue.new
2.times do
  thread('timer') { sleep 0.005 while goes_on }
end
thread('producer') do
  while goes_on
    sleep 0.005
    queue << 1
  end
  queue << nil
end
thread('consumer') { nil while queue.pop }
