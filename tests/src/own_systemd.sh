#!/bin/sh
# Becomes a systemd of its own: run by `unshare` as the first process of new namespaces, in a cgroup of its own. Whatever is
# written to /etc, /usr and /var is gone with it; of the units of the machine none is there, so that nothing of the machine is
# started. $1: a directory of the machine that is shown at /srv.
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/overlays
for top in etc usr var; do
  mkdir -p "/run/overlays/$top/upper" "/run/overlays/$top/work"
  mount -t overlay overlay \
    -o "lowerdir=/$top,upperdir=/run/overlays/$top/upper,workdir=/run/overlays/$top/work" "/$top"
done
mkdir -p /run/shared
mount --bind "$1" /run/shared
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /srv
mount --bind /run/shared /srv
for place in /usr/lib/systemd/system /usr/lib/systemd/system-generators /etc/systemd/system; do
  mount -t tmpfs tmpfs "$place"
done
# The state of the machine's units, as the package manager knows it.
rm -rf /var/lib/systemd/deb-systemd-helper-enabled
# Images for containers have one that lets no package start a service.
rm -f /usr/sbin/policy-rc.d
# A cgroup namespace has its root where it was made: the one of this systemd.
if mountpoint -q /sys/fs/cgroup/unified; then umount -l /sys/fs/cgroup/unified; fi
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for target in sysinit basic sockets multi-user network network-online shutdown umount final; do
  printf '[Unit]\nDefaultDependencies=no\n' >"/usr/lib/systemd/system/$target.target"
done
# Private towards the machine, shared inside, as systemd wants it for credentials.
mount --make-rshared /
exec env -i container=story PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
