# SPDX-License-Identifier: Apache-2.0
# A synchronous key derivation in a handler of HTTP: the event loop stands still. Not found yet: it computes,
# and no switch shows that the loop came back.
packages=nodejs
kind=blocked-loop
text='node did not return to (uv__io_poll|epoll_p?wait) .*(PBKDF2|pbkdf2|PKCS5)'
cause() { run_as_target node "$PROGRAMS/crypto.js" sync "$SECONDS_OF_RUN"; }
twin() { run_as_target node "$PROGRAMS/crypto.js" async "$SECONDS_OF_RUN"; }
