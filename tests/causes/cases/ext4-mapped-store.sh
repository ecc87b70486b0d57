# SPDX-License-Identifier: Apache-2.0
# A store to a mapped page that is being written to a disk with stable writes, which stops for half a second:
# the inner of two nested loop devices, whose outer file system is frozen.
packages='util-linux e2fsprogs gcc'
skip_unless='losetup -f'
kind=slow-fault
text='store waited for (pages|the journal of the file system) of hsperf .*count_event'
prepare() {
    local device
    binary=$(program store.c)
    mkdir "$WORK/outer" "$WORK/inner"
    truncate -s 400M "$WORK/image"
    mkfs.ext4 -q "$WORK/image"
    mount -o loop "$WORK/image" "$WORK/outer"
    truncate -s 200M "$WORK/outer/image"
    mkfs.ext4 -q "$WORK/outer/image"
    device=$(losetup -f --show "$WORK/outer/image")
    echo "$device" > "$WORK/device"
    echo 1 > "/sys/block/${device##*/}/queue/stable_writes"
    mount "$device" "$WORK/inner"
}
stop_the_disk() {
    local end=$((SECONDS + SECONDS_OF_RUN))
    while ((SECONDS < end)); do
        sleep 0.2
        fsfreeze -f "$WORK/outer"
        sync -f "$WORK/inner" &
        sleep 0.5
        fsfreeze -u "$WORK/outer"
        wait $!
    done
}
cause() {
    stop_the_disk &
    run_as_target "$binary" "$WORK/inner/hsperf" "$SECONDS_OF_RUN"
}
twin() { run_as_target "$binary" "$WORK/inner/hsperf" "$SECONDS_OF_RUN"; }
clean() {
    fsfreeze -u "$WORK/outer" 2> /dev/null
    umount -l "$WORK/inner"
    losetup -d "$(cat "$WORK/device")"
    umount -l "$WORK/outer"
}
