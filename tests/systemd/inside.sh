# SPDX-License-Identifier: Apache-2.0
# The tests inside the container, with systemd as process 1. The last line is the result.
# shellcheck source=tests/systemd/checks.sh
. /checks.sh

check_service
conclude
