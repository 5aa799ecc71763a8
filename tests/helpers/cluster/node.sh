# Process 1 of a node, in namespaces of its own (network, host name, IPC, mounts, processes).
# Arguments: the node's name, its address, its folder, the size of each of its disks, the user's home, the folder of
# compiled programs, and the folders that stay readable although a disk of the node hides them.
# Says when it waits for its cable, goes on when it reads a line, and says when it is ready.
set -euo pipefail
name=$1 address=$2 own=$3 size=$4 home=$5 compiled=$6
shift 6

mount() { command mount --no-mtab "$@"; } # /run, where it would note its mounts, comes and goes

hostname "$name"
mount --bind "$own/hosts" /etc/hosts
mount --bind "$own/containers-etc" /etc/containers
mount --bind "$own/containers" /var/lib/containers
mount --bind "$compiled" "$own/../compiled" # while it can still be seen

# A fresh sysfs shows this node's network devices; containers still need the machine's cgroups.
mkdir -p "$own/stage"
mount --rbind /sys/fs/cgroup "$own/stage"
mount -t sysfs sysfs /sys
mount --move "$own/stage" /sys/fs/cgroup

mount -t tmpfs -o mode=1777,size="$size" tmpfs /dev/shm # podman keeps its locks here, whatever its store
for disk in /tmp /var/tmp /run "$home"; do
    if [[ $disk == "$home" && -d $own/../home ]]; then
        mount --bind "$own/../home" "$own/stage"
    else
        mount -t tmpfs -o mode=1777,size="$size" "$name" "$own/stage"
    fi
    for kept in "$@"; do
        if [[ $kept == "$disk"/* ]]; then
            mkdir -p "$own/stage/${kept#"$disk"/}"
            mount --rbind "$kept" "$own/stage/${kept#"$disk"/}"
            mount -o remount,bind,ro "$own/stage/${kept#"$disk"/}"
        fi
    done
    mount --move "$own/stage" "$disk"
done
chmod 700 "$home" # or sshd would not trust what is in it
mkdir -p -m 755 /run/sshd /run/lock /run/munge
mkdir -p -m 700 "$home/.ssh" "$home/bin" # what a test puts into bin is found before the rest
cp "$own/authorized_keys" "$home/.ssh/$name" # where a home is shared, another node may be about the same:
mv "$home/.ssh/$name" "$home/.ssh/authorized_keys" # this replaces whole, and cp fails where a file appears meanwhile

# There is no name server; what asks for one is refused at once, on the node and in containers.
names=$(readlink --canonicalize-missing /etc/resolv.conf)
if [[ $names == /run/* ]]; then
    mkdir -p "${names%/*}"
    touch "$names"
fi
echo "nameserver 127.0.0.1" > "$own/resolv.conf"
if [[ -e $names ]]; then
    mount --bind "$own/resolv.conf" "$names"
fi

# Two more places: one that all nodes share, and one that only looks so.
mount --rbind "$own/.." "$own/.."
mount --bind "$own/not-shared" "$own/../not-shared"
mount -o remount,bind,ro / # what else a node writes would land on the machine that plays it

echo waiting
read -r _
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "${address%.*}.254"
echo ready
exec catatonit -P < /dev/null > /dev/null 2>&1
