# SPDX-License-Identifier: Apache-2.0
# A server of several processes with a lock around the wait for the next client (a file lock, as
# Apache has it): each worker serves its client before it gives the lock away. In the twin it gives the
# lock away first, and the others wait for their turn, idle.
packages=
kind='lock-wait|holder-blocked'
text='server (processes )?waited for a file lock (of server )?in take_turn .*server'
prepare() { prefork=$(program prefork.c); }
cause() { run_as_target "$prefork" flock slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$prefork" flock quick "$SECONDS_OF_RUN"; }
target() { pgrep -x server > /dev/null && echo '--name server'; }
