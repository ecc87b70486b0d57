# SPDX-License-Identifier: Apache-2.0
# A file system that is frozen for 0.3 s twice a second, as for a snapshot: who writes to it waits.
packages='util-linux e2fsprogs gcc'
skip_unless='losetup -f'
kind='kernel-lock|disk-wait|lock-wait'
text='append .*(freeze|frozen|write).*append_record'
prepare() {
    binary=$(program append.c)
    truncate -s 64M "$WORK/image"
    mkfs.ext4 -q "$WORK/image"
    mkdir "$WORK/mounted"
    mount -o loop "$WORK/image" "$WORK/mounted"
}
freeze() {
    local end=$((SECONDS + SECONDS_OF_RUN))
    while ((SECONDS < end)); do
        fsfreeze -f "$WORK/mounted"
        sleep 0.3
        fsfreeze -u "$WORK/mounted"
        sleep 0.2
    done
}
cause() {
    freeze &
    run_as_target "$binary" "$WORK/mounted/log" "$SECONDS_OF_RUN"
}
twin() { run_as_target "$binary" "$WORK/mounted/log" "$SECONDS_OF_RUN"; }
clean() {
    fsfreeze -u "$WORK/mounted" 2> /dev/null
    umount -l "$WORK/mounted"
}
