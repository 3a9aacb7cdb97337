#!/bin/sh
# What tests/browser and tests/cluster need beside Python packages, for Debian: as root, sh tests/install_debian.sh
# Without them those tests are skipped. Where systemd runs, Debian starts sshd, munge and Slurm's daemons as well.
set -eu
packages="chromium chromium-driver openssh-server pdsh slurm-wlm openmpi-bin"

if [ "$(id -u)" -ne 0 ] || ! grep -qx 'ID=debian' /etc/os-release; then
    echo "$0: needs root on Debian. Elsewhere install yourself: $packages" >&2
    exit 1
fi
missing=$(for package in $packages; do
    dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || echo "$package"
done)
if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086  # several words
    apt-get install -q -y --no-install-recommends $missing
fi
