"""Compares what a program reads from a PDF with what pdftotext does: compare.py PROGRAM FILE

The likeness of two pages is the F1 score of their character trigrams, white space left out: it does not mind where lines
are broken or in which order blocks stand.
"""

import collections
import re
import resource
import subprocess
import sys

LIKENESS_MIN = 0.95
GOOD_MIN = 0.97
# Of the child, which does all the parsing, and of its parent.
CHILD_MIB_MAX = 150
PARENT_MIB_MAX = 50


def trigrams(text):
    text = "".join(text.split())
    return collections.Counter(text[i : i + 3] for i in range(len(text) - 2))


def likeness(one, other):
    one, other = trigrams(one), trigrams(other)
    if not one and not other:
        return 1.0
    return 2 * (one & other).total() / (one.total() + other.total())


program, file = sys.argv[1:]
read = subprocess.run([program, file], check=True, capture_output=True, text=True).stdout
parent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
summary = subprocess.run([program, "--summary", file], check=True, capture_output=True, text=True).stdout
child = int(re.search(r"(\d+) MiB$", summary, flags=re.M)[1])
parts = re.split(r"^--- page \d+: (.*)\n", read, flags=re.M)[1:]
qualities, pages = parts[::2], parts[1::2]
expected = subprocess.run(["pdftotext", file, "-"], check=True, capture_output=True, text=True).stdout.split("\f")[:-1]
if len(pages) != len(expected):
    sys.exit(f"{file}: {len(pages)} pages were read, pdftotext reads {len(expected)}")
scores = [likeness(page, other) for page, other in zip(pages, expected)]
mean = sum(scores) / len(scores)
good = qualities.count("good") / len(qualities)
worst = min(range(len(scores)), key=scores.__getitem__)
print(
    f"{file}: {len(pages)} pages, likeness {mean:.3f} (page {worst + 1}: {scores[worst]:.2f}), "
    f"{good:.1%} good, {child} MiB in the child, {parent} MiB in its parent"
)
if mean < LIKENESS_MIN or good < GOOD_MIN:
    sys.exit(f"{file}: expected likeness {LIKENESS_MIN} and {GOOD_MIN:.0%} good")
if child > CHILD_MIB_MAX or parent > PARENT_MIB_MAX:
    sys.exit(f"{file}: expected at most {CHILD_MIB_MAX} MiB in the child and {PARENT_MIB_MAX} MiB in its parent")
