#!/bin/sh
# Prints verses of the King James Bible as running prose, a paragraph a chapter. Needs Debian's package bible-kjv.
# usage: make_kjv.sh [RANGE] > kjv.txt        RANGE as bible(1) takes it; default: all of Genesis
set -eu

range=${1:-gen1:1-50:26}
command -v bible >/dev/null || { echo "make_kjv.sh: bible not found; try: sudo apt install bible-kjv" >&2; exit 1; }

# bible -f prints a verse a line, "Ge1:2 And the earth ...": the reference goes, and where its chapter changes a paragraph ends.
bible -f "$range" </dev/null | awk '
  !match($0, /^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ /) { next }
  {
    reference = substr($0, 1, RLENGTH)
    verse = substr($0, RLENGTH + 1)
    sub(/:.*/, "", reference)
    if (reference != chapter) { if (NR > 1) printf "\n\n" } else printf " "
    chapter = reference
    printf "%s", verse
  }
  END { print "" }'
