#!/bin/sh
# What the tests need that is not a Python package, for Debian: as root, sh tests/install_debian.sh
# Without Chromium and the programs of clusters, tests/browser and tests/cluster are skipped. Where systemd runs, Debian starts sshd, munge and Slurm's daemons as well.
set -eu
packages="g++ make python3-dev python3-venv chromium chromium-driver openssh-server pdsh slurm-wlm openmpi-bin"

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
