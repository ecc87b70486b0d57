# SPDX-License-Identifier: Apache-2.0
# The thread that reads a UDP socket does something else every half second, and the kernel drops what comes meanwhile.
packages=gcc
kind=dropped-packets
text='[0-9]+ packets were dropped at the socket udp 127\.0\.0\.1:[0-9]+ of feed in .*: meanwhile receiver of feed was asleep in refresh_cache'
prepare() { binary=$(program feed.c); }
cause() { run_as_target "$binary" sleep "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" read "$SECONDS_OF_RUN"; }
target() { target_with_thread receiver; }
