# SPDX-License-Identifier: Apache-2.0
# Four logins at a time keep all threads of libuv's pool, and reads of small files wait in its queue. The four
# threads may fill the CPUs, too: `cpu-saturated` is then another finding.
packages=nodejs
kind=pool-exhausted
text="All 4 threads of libuv's pool of node were busy for .* mostly running .*in node::crypto::PBKDF2Traits::DeriveBits"
cause() { run_as_target node "$PROGRAMS/pool.js" together "$SECONDS_OF_RUN"; }
twin() { run_as_target node "$PROGRAMS/pool.js" apart "$SECONDS_OF_RUN"; }
