#!/bin/sh
# Prints a text that changes its subject four times, for a trace whose keys drift: verses of the King James Bible, Python's
# reference, a Python module, a header of the kernel in C, and the Debian FAQ in German. About 8,300 tokens of SmolLM2, a fifth
# of them a subject. All are parts of Debian 12's packages, which are taken apart and not installed.
# usage: make_drift.sh > drift.txt        (needs apt-get, dpkg-deb, python3, libreadline8 and the network)
set -eu

packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
here=$(cd "$(dirname "$0")" && pwd)

(
  cd "$packages"
  apt-get download -qq bible-kjv bible-kjv-text libpython3.11-stdlib linux-libc-dev debian-faq-de >&2
  for package in *.deb; do
    dpkg-deb -x "$package" .
    echo "${package%.deb}" >&2
  done
)

# bible reads its text from the working folder if it finds it there.
(cd "$packages/usr/lib" && PATH="$packages/usr/bin:$PATH" "$here/make_kjv.sh" gen1:1-12:20) | head -c 7700
printf '\n\n'
python3 - "$packages/usr/lib/python3.11/pydoc_data/topics.py" <<'PYTHON' | head -c 7200
import sys
topics = {}
exec(open(sys.argv[1], encoding="utf-8").read(), topics)
try:
    print(topics["topics"]["objects"] + topics["topics"]["execmodel"])
except BrokenPipeError:  # head has what it wants
    sys.stderr.close()
PYTHON
printf '\n\n'
tail -n +420 "$packages/usr/lib/python3.11/asyncio/base_events.py" | head -c 7000
printf '\n\n'
tail -n +1100 "$packages/usr/include/linux/bpf.h" | head -c 4700
printf '\n\n'
gunzip -c "$packages/usr/share/doc/debian/FAQ/debian-faq.de.txt.gz" | grep -v '^ *$' | tail -n +400 | head -c 4600
