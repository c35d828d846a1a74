"""Compares reads of 128 KiB with O_DIRECT into a huge page and into scattered pages of 4 KiB. buffers.py FILE"""
import mmap, os, time, random, statistics, sys
f = sys.argv[1]
fd = os.open(f, os.O_RDONLY | os.O_DIRECT)
size = os.fstat(fd).st_size
N = 131072
def area(huge):
    m = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    # Touch the pages in random order, so that small pages are not contiguous.
    pages = list(range(0, 8 << 20, 4096)); random.shuffle(pages)
    for p in pages: m[p] = 1
    return m
areas = {"huge": area(True), "small": area(False)}
res = {k: [] for k in areas}
at = 0
for i in range(400):
    for k, m in areas.items():
        v = memoryview(m)[2 << 20: (2 << 20) + N]
        t = time.perf_counter_ns(); os.preadv(fd, [v], at % (size - N)); res[k].append(time.perf_counter_ns() - t)
        at += N
for k, r in res.items(): r.sort(); print(k, "min", r[0], "p10", r[len(r)//10], "median", r[len(r)//2])
