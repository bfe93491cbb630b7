"""Shell scripts that set up the mounts and the network for buildah, and that run it there.

They run in mount and pid namespaces that end with us (:mod:`waypoint.kernel.processes.private_namespaces`), one after
the other in one shell.
"""

__all__ = ["ENTER_STORE", "ENTER_NETWORK", "ENTER_CELL", "RUN", "EXPORT", "EMPTY", "COMMIT"]

# Arguments of each script: the pool, the directory for files that live only as long as the script, and the command.
# The pool is mounted without set-user-id programs; a RUN step may need them. What other tools of this host keep in
# the usual directories is neither read nor added to.
ENTER_STORE = """\
pool=$1 run=$2; shift 2
mount --bind "$pool" "$pool"
mount -o remount,bind,noatime,nodev,suid "$pool"
mount -t tmpfs -o mode=0700 waypoint-build "$run"
for shared in /run/containers /var/lib/containers /var/cache/containers; do
    mkdir -p "$shared"
    mount -t tmpfs -o mode=0700 waypoint-build "$shared"
done
"""
ENTER_NETWORK = """\
: >"$run/net"
unshare --net="$run/net" true
mkfifo "$run/ready"
sh -euc 'echo 0 >"$0/cgroup.procs"; exec "$@"' "$WAYPOINT_NETWORK_CGROUP" \
    slirp4netns --configure --mtu=65520 --disable-host-loopback --ready-fd=3 --netns-type=path "$run/net" tap0 \
    3>"$run/ready" >"$run/slirp.log" 2>&1 &
[ "$(head -c 1 "$run/ready")" = 1 ] || { cat "$run/slirp.log" >&2; exit 1; }
"""
# A build may name paths of the host, through links in its directory or in an image (RUN --mount). So it gets a root
# that holds only what buildah and runc themselves need, and what is built, at their usual paths. A directory that is
# read-only there is so with all mounts below it, except those that another mount hides; "mount -o ro" alone changes
# one mount. The only cgroup of the host that can be written is the one in which runc makes those of the steps.
ENTER_CELL = """\
cell=/run/containers/cell
mkdir "$cell"
mount -t tmpfs -o mode=0755 waypoint-build "$cell"
for_mounts_below() {
    mounts=$(sed 's/\\\\1/\\\\01/g' /proc/self/mountinfo)
    while read -r _ _ _ _ mount_point rest; do
        case $mount_point in *\\\\*) mount_point=$(printf %b "$mount_point") ;; esac
        case $mount_point in "$1" | "$1"/*) if mountpoint -q "$mount_point"; then "$2" "$mount_point" "$rest"; fi ;; esac
    done <<END
$mounts
END
}
forbid_writing() { mount -o remount,bind,ro "$1"; }
show() {
    [ -e "$1" ] || return 0
    if [ -d "$1" ]; then mkdir -p "$cell$1"; else mkdir -p "$cell${1%/*}"; [ -e "$cell$1" ] || : >"$cell$1"; fi
    mount "${3---rbind}" "$1" "$cell$1"
    [ "$2" = rw ] || for_mounts_below "$cell$1" forbid_writing
}
mkdir -p "$cell/tmp" "$cell/run" "$cell/root" "$cell/old" "$cell/var/tmp" "$cell/var/lib" "$cell/var/cache"
for path in "$WAYPOINT_CONTEXT" "$WAYPOINT_FILE" "${REGISTRY_AUTH_FILE-}"; do show "$path" ro; done
for path in /bin /sbin /lib /lib32 /lib64 /libx32; do
    if [ -L "$path" ]; then cp -P "$path" "$cell"; else show "$path" ro; fi
done
for path in alternatives ca-certificates containers docker/certs.d gai.conf group host.conf hosts ld.so.cache ld.so.conf \
    ld.so.conf.d localtime nsswitch.conf passwd pki protocols resolv.conf services ssl/certs \
    ssl/openssl.cnf; do
    show "/etc/$path" ro
done
show /usr ro
show /proc rw --bind
for path in sys sysrq-trigger irq bus fs acpi scsi; do
    if [ -e "/proc/$path" ]; then
        mount --bind "/proc/$path" "$cell/proc/$path"
        mount -o remount,bind,ro "$cell/proc/$path"
    fi
done
show /sys ro --bind
show /sys/fs/cgroup ro
allow_group() {
    case $2 in *" - cgroup "* | *" - cgroup2 "*) ;; *) return 0 ;; esac
    mkdir "${1#"$cell"}$WAYPOINT_CGROUP"
    mount --bind "${1#"$cell"}$WAYPOINT_CGROUP" "$1$WAYPOINT_CGROUP"
}
for_mounts_below "$cell/sys/fs/cgroup" allow_group
for path in null zero full random urandom tty; do show "/dev/$path" rw; done
mkdir -p "$cell/dev/shm" "$cell/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$cell/dev/pts"
ln -s pts/ptmx "$cell/dev/ptmx"
ln -s /proc/self/fd "$cell/dev/fd"
show "$WAYPOINT_STORE" rw
pivot_root "$cell" "$cell/old"
cd /
umount -l /old
"""
RUN = '"$@"\n'
# The files of an image, straight from its topmost layer: "buildah from" would run the image's ONBUILD instructions,
# and a COPY among them can take any file of the host. On btrfs a layer is the whole tree. With overlays it holds only
# the changes, and next to it is a list of the layers below.
EXPORT = """\
layers=$WAYPOINT_STORE/$WAYPOINT_DRIVER
if [ "$WAYPOINT_DRIVER" = btrfs ]
then
    btrfs -q subvolume snapshot "$layers/subvolumes/$WAYPOINT_LAYER" "$WAYPOINT_TARGET"
    exit
fi
cd "$layers"
tree=$WAYPOINT_LAYER/diff
if [ -e "$WAYPOINT_LAYER/lower" ]
then
    mkdir "$run/tree"
    mount -t overlay -o "ro,lowerdir=$tree:$(cat "$WAYPOINT_LAYER/lower")" overlay "$run/tree"
    tree=$run/tree
fi
mkdir "$WAYPOINT_TARGET"
cp -a --reflink=auto "$tree/." "$WAYPOINT_TARGET"
"""
EMPTY = """\
if [ "$WAYPOINT_DRIVER" = btrfs ]
then btrfs -q subvolume create "$WAYPOINT_TARGET"
else mkdir "$WAYPOINT_TARGET"
fi
"""
COMMIT = """\
container=$("$@" from scratch)
tree=$("$@" mount "$container")
cp -a --reflink=auto "$WAYPOINT_SOURCE/." "$tree"
"$@" commit --quiet --rm --format docker --signature-policy "$WAYPOINT_POLICY" "$container" "$WAYPOINT_NAME"
"""
