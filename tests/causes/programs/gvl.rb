# SPDX-License-Identifier: Apache-2.0
# A thread that compresses a page every few milliseconds, without the GVL. With `busy`, beside one that computes and
# keeps it.
#
# usage: gvl.rb busy|alone SECONDS
require 'zlib'
require_relative 'threads'

page = 'page' * 5_000
thread('requests') do
  while goes_on
    sleep 0.002
    Zlib::Deflate.deflate(page)
  end
end
