#!/bin/sh
# Writes the texts that the committed profile was measured on, taken from Debian 12's packages: nothing is installed.
# usage: make_profile_texts.sh FOLDER        (made if it does not exist; needs apt-get, dpkg-deb and the network)
set -eu

[ $# -eq 1 ] || { echo "usage: make_profile_texts.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT

cd "$packages"
apt-get download -qq libpython3.11-minimal dict-devil debian-reference-en
for package in *.deb; do
  dpkg-deb -x "$package" .
  echo "${package%.deb}" >&2
done

cp usr/lib/python3.11/argparse.py "$folder/argparse.py"
# Both books from their first words on: what stands before are notices and tables of contents.
gunzip -c <usr/share/dictd/devil.dict.dz | awk '/^ *PREFACE$/ { on = 1 } on' >"$folder/devils-dictionary.txt"
nbsp=$(printf '\302\240')
gunzip -c usr/share/debian-reference/debian-reference.en.txt.gz |
  LC_ALL=C sed "s/$nbsp/ /g" | awk '/^Chapter 1\. / { on = 1 } on' >"$folder/debian-reference.txt"
