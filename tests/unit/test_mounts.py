"""What is mounted, as the kernel writes it."""

from waypoint.kernel.mounts import MountEntry, parse_mounts

MOUNTINFO = (
    b"21 1 254:0 / / rw - ext4 /dev/vda rw\n"
    b"30 21 8:1 / /media/Donn\xc3\xa9es rw - ext4 /dev/sdb1 rw\n"
    b"31 21 8:2 / /mnt/with\\040blank rw - xfs /dev/sdc1 rw\n"
    b"32 21 8:3 / /mnt/\xff rw - ext4 /dev/sdd1 rw\n"
    b"33 21 8:4 / /home rw - ext4 /dev/sde1 rw\n"
    b"34 33 0:40 / /home rw - tmpfs tmpfs rw\n"
)


def test_paths_are_read_as_they_are_and_of_two_at_one_place_the_last_counts() -> None:
    assert parse_mounts(MOUNTINFO) == [
        MountEntry("/", "ext4"),
        MountEntry("/media/Données", "ext4"),
        MountEntry("/mnt/with blank", "xfs"),
        MountEntry("/mnt/\udcff", "ext4"),
        MountEntry("/home", "tmpfs"),
    ]
