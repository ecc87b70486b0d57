# Reads through io_uring from a disk that is limited to 50 reads a second. The twin reads from the page cache: other
# programs use the disk, too.
packages='gcc util-linux'
skip_unless='[ -e /sys/fs/cgroup/blkio/blkio.throttle.read_iops_device ] || grep -qw io /sys/fs/cgroup/cgroup.subtree_control'
kind=disk-wait
text='ring waited .*read_block'
prepare() {
    binary=$(program ring.c)
    group=$(control_group blkio)
    head -c 32M /dev/urandom > "$WORK/table"
    sync "$WORK/table"
    # The disk itself, not one of its partitions.
    source=$(df --output=source "$WORK" | tail -1)
    disk=$(lsblk -no PKNAME "$source" | tail -1)
    device=$(lsblk -dno MAJ:MIN "${disk:+/dev/}${disk:-$source}" | tr -d ' ')
}
limit() { # READS A SECOND
    if [ -e "$group/io.max" ]; then
        echo "$device riops=$1" > "$group/io.max"
    else
        echo "$device $1" > "$group/blkio.throttle.read_iops_device"
    fi
}
cause() {
    limit 50
    run_in_group_as_target "$group" "$binary" "$WORK/table" "$SECONDS_OF_RUN" direct
}
twin() {
    limit 1000000
    cat "$WORK/table" > /dev/null
    run_in_group_as_target "$group" "$binary" "$WORK/table" "$SECONDS_OF_RUN" cached
}
clean() { rmdir "$group"; }
