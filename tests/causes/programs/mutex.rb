# SPDX-License-Identifier: Apache-2.0
# A thread that takes a Mutex every two milliseconds, beside one that takes it every 20 ms and never waits for it. With `held`
# that one sleeps while it has the Mutex.
#
# usage: mutex.rb held|free SECONDS
require_relative 'threads'

book = Mutex.new
thread('orders') do
  while goes_on
    book.synchronize { nil }
    sleep 0.002
  end
end
thread('audit') do
  while goes_on
    book.synchronize { sleep 0.01 if HOW == 'held' }
    sleep 0.02
  end
end
