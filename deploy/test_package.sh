#!/usr/bin/env bash
# Proves the packages in a clean root of this machine's release: installs them, starts seined as its user without systemd, asks
# for its health, stops it, purges the packages and compares the root with what it was. Needs root and mmdebstrap.
# Arguments: the folder of the .deb files; --library also builds the consumer project in the root, against libseine-dev.
set -euo pipefail
packages=$(cd "$1" && pwd)
library=${2:-}
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
codename=$(sed -n s/^VERSION_CODENAME=//p /etc/os-release)

die() {
  printf 'test_package: %s\n' "$*" >&2
  exit 1
}
((EUID == 0)) || die "a clean root can be made by root only"
[[ $(find "$packages" -maxdepth 1 -name '*.deb' | wc -l) == 3 ]] || die "$packages: there must be three packages; run ./dev package"

scratch=$(mktemp -d)
root=$scratch/root
trap 'rm -rf "$scratch"' EXIT

# Sources and the ways to reach them are this machine's own.
sources=(/etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources /etc/apt/sources.list)
for source in "${sources[@]}"; do
  [[ ! -s $source ]] || break
done
apt-config dump Acquire >"$scratch/apt.conf"
wanted="$(for package in "$packages"/*.deb; do dpkg-deb -f "$package" Depends; done | paste -sd,)"
[[ $library != --library ]] || wanted+=", cmake, g++, make"
mmdebstrap --quiet --variant=apt --aptopt="$scratch/apt.conf" --skip=cleanup/apt/lists \
  "$codename" "$root" "$source" >"$scratch/log" 2>&1 || {
  cat "$scratch/log" >&2
  die "mmdebstrap made no root"
}
mkdir "$root/packages"
cp "$packages"/*.deb "$root/packages/"
cp -r "$tree/tests/house/consumer" "$root/packages/"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"

# Runs a script in the root, with processes and mounts of its own, which end with it.
in_root() {
  # shellcheck disable=SC2016 # "$1" is the inner shell's
  unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$1/proc" && exec env -i HOME=/root \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$1" bash -euo pipefail -s' \
    sh "$root" >"$scratch/log" 2>&1 || {
    cat "$scratch/log" >&2
    die "$1"
  }
}
# Every file, and the users and groups.
contents() {
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./packages -o -path ./tmp -o -path ./var/log -o -path ./var/cache \
    -o -path './var/lib/dpkg/*-old' -o -path './etc/*-' -o -path ./run/adduser \) -prune -o -print | sort && cat etc/passwd etc/group)
}

in_root "what the packages depend on was not installed" <<E
export DEBIAN_FRONTEND=noninteractive
apt-get satisfy -qy --no-install-recommends "$wanted"
E
contents >"$scratch/before"

in_root "the packages were not installed, or seined did not serve" <<'E'
dpkg -i /packages/*.deb
test "$(stat -c %a /etc/seine/seined.yaml)" = 644
seined --config /etc/seine/seined.yaml --check-config
seine-bench recall --synthetic rope --num-keys 8192 --head-dim 64 --num-queries 2 -o json
# What systemd does with RuntimeDirectory= and User=.
install -d -o seine -g seine /run/seine
setpriv --reuid=seine --regid=seine --clear-groups seined --config /etc/seine/seined.yaml &
seined=$!
export SEINE_SERVER=unix:///run/seine/seine.sock
seine health --wait 10
seine version
kill -TERM "$seined"
wait "$seined"
rmdir /run/seine
E
echo "installed, served and stopped: $(cd "$packages" && echo *.deb)"

if [[ $library == --library ]]; then
  in_root "the consumer project was not built against libseine-dev" <<'E'
cmake -S /packages/consumer -B /packages/build -DCMAKE_BUILD_TYPE=Debug
cmake --build /packages/build
/packages/build/embedded
E
  echo "built and run: a project with find_package(seine)"
fi

in_root "the packages were not purged" <<'E'
dpkg --purge seine-server seine-tools libseine-dev
E
contents >"$scratch/after"
diff "$scratch/before" "$scratch/after" >&2 || die "purging left behind what is marked with >"
echo "purged: nothing is left behind"
