# Tests whether a copy engine copies between two registered buffers in host memory. Measures how long the call
# takes and how long the copy takes.
import ctypes, mmap, os, time, json
cu = ctypes.CDLL("libcuda.so.1")
def ck(r, w):
    if r: raise SystemExit(f"{w}: {r}")
u64 = ctypes.c_uint64; vp = ctypes.c_void_p
ck(cu.cuInit(0), "init"); dev = ctypes.c_int(); ck(cu.cuDeviceGet(ctypes.byref(dev), 0), "dev")
ctx = vp(); ck(cu.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), dev), "ctx"); ck(cu.cuCtxSetCurrent(ctx), "cur")
N = 64 << 20
def buf():
    fd = os.memfd_create("x"); os.ftruncate(fd, N)
    m = mmap.mmap(fd, N); a = ctypes.addressof(ctypes.c_char.from_buffer(m)); return m, a
ms, s = buf(); md, d = buf(); ms[:] = os.urandom(1 << 20) * 64
for a in (s, d): ck(cu.cuMemHostRegister_v2(vp(a), ctypes.c_size_t(N), 3), "register")
st = vp(); ck(cu.cuStreamCreate(ctypes.byref(st), 1), "stream")
out = []
for name, call in [("cuMemcpyAsync", lambda n: cu.cuMemcpyAsync(u64(d), u64(s), ctypes.c_size_t(n), st)),
                   ("cuMemcpyDtoDAsync", lambda n: cu.cuMemcpyDtoDAsync_v2(u64(d), u64(s), ctypes.c_size_t(n), st))]:
    for n in (4096, 65536, 1 << 20, 4 << 20, 64 << 20):
        best = None
        for _ in range(10):
            md[:n] = bytes(n)
            c0 = time.thread_time(); p0 = time.process_time(); t0 = time.perf_counter(); r = call(n); t1 = time.perf_counter(); ck(cu.cuStreamSynchronize(st), "sync"); t2 = time.perf_counter()
            v = (t2 - t0, t1 - t0, time.process_time() - p0, r)
            best = v if best is None or v < best else best
        out.append(dict(call=name, bytes=n, total_us=best[0] * 1e6, call_us=best[1] * 1e6, cpu_us=best[2] * 1e6, result=best[3], right=md[:n] == ms[:n]))
print(json.dumps(out, indent=1))
