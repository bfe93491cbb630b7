"""Reading what is mounted from the kernel's text."""

from waypoint.kernel.storage.mounts import MountEntry, parse_mounts

MOUNTINFO = (
    b"21 1 254:0 / / rw - ext4 /dev/vda rw\n"
    b"30 21 8:1 / /media/Donn\xc3\xa9es rw - ext4 /dev/sdb1 rw\n"
    b"31 21 8:2 /a\\040part /mnt/with\\040blank ro,nosuid - xfs /dev/sdc1 rw\n"
    b"32 21 8:3 / /mnt/\xff rw - ext4 /dev/sdd1 rw\n"
    b"33 21 8:4 / /home rw - ext4 /dev/sde1 rw\n"
    b"34 33 0:40 / /home rw - tmpfs tmpfs rw\n"
)


def test_escaped_paths_are_decoded_and_the_last_mount_on_a_path_counts() -> None:
    assert parse_mounts(MOUNTINFO) == [
        MountEntry(21, "/", "ext4", "254:0", "/", is_read_only=False, options="rw"),
        MountEntry(30, "/media/Données", "ext4", "8:1", "/", is_read_only=False, options="rw"),
        MountEntry(31, "/mnt/with blank", "xfs", "8:2", "/a part", is_read_only=True, options="rw"),
        MountEntry(32, "/mnt/\udcff", "ext4", "8:3", "/", is_read_only=False, options="rw"),
        MountEntry(34, "/home", "tmpfs", "0:40", "/", is_read_only=False, options="rw"),
    ]
