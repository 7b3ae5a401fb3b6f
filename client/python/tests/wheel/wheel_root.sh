#!/usr/bin/env bash
# Makes a clean root of another Debian or Ubuntu release, and tries the wheel there. Needs root, mmdebstrap and PyPI.
#   wheel_root.sh make RELEASE FOLDER  makes FOLDER/root, with Python and nothing else, and FOLDER/headers, of its Python
#   wheel_root.sh test FOLDER WHEEL    runs wheel_test.py in FOLDER/root
#   wheel_root.sh strangers FOLDER WHEEL [WAY...]  runs README.md's three ways in in FOLDER/root, by strangers.py
# `./dev wheel test --root RELEASE` and `./dev wheel strangers` call them. RELEASE: trixie, noble or another codename. SEINE_ROOT_SOURCE: a line of apt's
# sources in place of the release's own archive.
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../../.." && pwd)

die() {
  printf 'wheel_root: %s\n' "$*" >&2
  exit 1
}

# The archive's line, checked by the archive's key.
source_of() { # RELEASE
  local keys=/usr/share/keyrings/debian-archive-keyring.gpg line="http://deb.debian.org/debian $1 main"
  if [[ $1 == noble || $1 == oracular || $1 == plucky || $1 == questing ]]; then
    keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg line="http://archive.ubuntu.com/ubuntu $1 main universe"
  fi
  [[ -s $keys ]] || die "$1: $keys is missing, so nothing from its archive can be checked; SEINE_ROOT_SOURCE may name another source"
  echo "deb [signed-by=$keys] $line"
}

# Runs a command in the root, with processes and mounts of its own, which end with it.
in_root() { # ROOT COMMAND...
  # shellcheck disable=SC2016 # "$1" is the inner shell's
  unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 && shift &&
    exec env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"' sh "$@"
}

make_root() { # RELEASE FOLDER
  local source=${SEINE_ROOT_SOURCE:-} folder=$2 headers
  [[ -n $source ]] || source=$(source_of "$1")
  rm -rf "$folder" && mkdir -p "$folder"
  apt-config dump Acquire >"$folder/apt.conf" # this machine's ways to reach an archive
  mmdebstrap --quiet --variant=apt --aptopt="$folder/apt.conf" --skip=cleanup/apt/lists \
    --include=python3,python3-venv,ca-certificates "$1" "$folder/root" "$source" >"$folder/log" 2>&1 || {
    cat "$folder/log" >&2
    die "mmdebstrap made no root of $1"
  }
  # Sources, names and certificates of hosts are this machine's own.
  cp -L /etc/resolv.conf /etc/hosts "$folder/root/etc/"
  cp -L /etc/ssl/certs/ca-certificates.crt "$folder/root/etc/ssl/certs/"
  [[ ! -s /etc/pip.conf ]] || cp -L /etc/pip.conf "$folder/root/etc/"

  headers=lib$(in_root "$folder/root" python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')-dev
  # shellcheck disable=SC2016
  in_root "$folder/root" sh -c 'cd /tmp && apt-get -q download "$1"' sh "$headers" >>"$folder/log" 2>&1 || {
    cat "$folder/log" >&2
    die "$headers was not downloaded"
  }
  local root=$folder/root
  local debs=$root/tmp
  dpkg-deb -x "$debs"/libpython*-dev_*.deb "$folder/unpacked"
  mkdir "$folder/headers"
  # pyconfig.h lies in a folder of the architecture, and the other one includes it by that folder's name.
  cp -r "$folder"/unpacked/usr/include/python3.*/. "$folder"/unpacked/usr/include/*-linux-gnu "$folder/headers/"
  rm -rf "$folder/unpacked" "$debs"/*.deb
}

test_root() { # FOLDER WHEEL
  local root=$1/root
  mkdir -p "$root/seine/client/python/tests/wheel" "$root/seine/docs"
  cp "$tree/docs/python.md" "$root/seine/docs/"
  cp "$tree/client/python/tests/wheel/wheel_test.py" "$root/seine/client/python/tests/wheel/"
  cp "$2" "$root/seine/"
  # shellcheck disable=SC2016
  in_root "$root" sh -euc '. /etc/os-release; echo "wheel: $PRETTY_NAME, $(python3 --version), $(ldd --version | head -n 1)"
    python3 -m venv /seine/venv; exec /seine/venv/bin/python /seine/client/python/tests/wheel/wheel_test.py "$1"' sh "/seine/$(basename "$2")"
}

strangers() { # FOLDER WHEEL [WAY...]
  local tree_there=$1/root/seine
  rm -rf "$tree_there" && mkdir -p "$tree_there/client/python/tests/wheel" "$tree_there/docs" "$tree_there/build/wheel"
  cp -r "$tree/README.md" "$tree/proto" "$tree_there/"
  cp -r "$tree/docs/examples" "$tree_there/docs/"
  cp "$tree/client/python/tests/wheel/strangers.py" "$tree_there/client/python/tests/wheel/"
  cp "$2" "$tree_there/build/wheel/"
  in_root "$1/root" sh -c 'DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends libgomp1 >/dev/null' # of llama-server
  in_root "$1/root" python3 /seine/client/python/tests/wheel/strangers.py "${@:3}"
}

((EUID == 0)) || die "a clean root can be made by root only"
case ${1:-} in
  make) [[ $# == 3 ]] && make_root "$2" "$3" ;;
  test) [[ $# == 3 ]] && test_root "$2" "$3" ;;
  strangers) (($# >= 3)) && strangers "${@:2}" ;;
  *) die "what to do: make RELEASE FOLDER, test FOLDER WHEEL, or strangers FOLDER WHEEL" ;;
esac
