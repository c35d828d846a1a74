/* A stub of libcuda.so.1 with two GPUs, whose streams complete, hang and fail as a test says. A copy moves its
 * bytes at once; its event and stream report completion later. Where the real driver waits for a GPU that hangs,
 * the stub waits forever, too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_READY = 600, ILLEGAL_ADDRESS = 700 };

typedef struct {
    volatile int recorded, allowed, failed;
} stream;

typedef struct {
    stream *of;
    int number;
} event;

static stream *all[64];
static int count;

/* Completes the first `events` events of the stream and no later ones. */
void stub_allow(stream *s, int events) { s->allowed = events; }
void stub_fail(stream *s) { s->failed = 1; }

static int state(stream *s, int number) {
    return s && s->failed ? ILLEGAL_ADDRESS : s && number > s->allowed ? NOT_READY : 0;
}

static int hangs(void) {
    int found = 0;
    for (int i = 0; i < count; i++) found |= state(all[i], all[i]->recorded) == NOT_READY;
    return found;
}

static int wait_for_all(void) {
    while (hangs()) usleep(1000);
    return 0;
}

int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuInit(unsigned flags) { return (void)flags, 0; }
int cuDeviceGetCount(int *devices) { return *devices = 2, 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return (void)attribute, (void)device, *value = 1, 0; }
int cuDeviceGetName(char *name, int length, int device) { return (void)device, strncpy(name, "stub", length), 0; }
int cuDeviceGetPCIBusId(char *name, int length, int device) { return (void)device, strncpy(name, "ffff:ff:1f.7", length), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return (void)device, *bytes = 1 << 30, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)(intptr_t)(device + 1), 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, wait_for_all(); }
int cuCtxSetCurrent(void *context) { return (void)context, 0; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0, 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = 1 << 30, 0; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { return *address = (uint64_t)aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), 0; }
int cuMemFree_v2(uint64_t address) { return wait_for_all(), free((void *)address), 0; }
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) { return (void)flags, cuMemAlloc_v2((uint64_t *)address, bytes); }
int cuMemFreeHost(void *address) { return cuMemFree_v2((uint64_t)address); }
int cuMemHostGetDevicePointer_v2(uint64_t *address, void *host, unsigned flags) { return (void)flags, *address = (uint64_t)host, 0; }
int cuMemsetD8Async(uint64_t address, unsigned char byte, size_t bytes, stream *s) { return (void)s, memset((void *)address, byte, bytes), 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, stream *s) {
    return memcpy((void *)to, from, bytes), s->failed ? ILLEGAL_ADDRESS : 0;
}

int cuStreamCreateWithPriority(stream **s, unsigned flags, int priority) {
    (void)flags, (void)priority;
    *s = calloc(1, sizeof **s);
    (*s)->allowed = 1 << 30;
    if (count < 64) all[count++] = *s;
    return 0;
}
int cuStreamDestroy_v2(stream *s) { return (void)s, wait_for_all(); }
int cuStreamQuery(stream *s) { return state(s, s->recorded); }
int cuStreamSynchronize(stream *s) {
    while (state(s, s->recorded) == NOT_READY) usleep(1000);
    return state(s, s->recorded);
}

int cuEventCreate(event **e, unsigned flags) { return (void)flags, *e = calloc(1, sizeof **e), 0; }
int cuEventDestroy_v2(event *e) { return free(e), 0; }
int cuEventRecord(event *e, stream *s) { return e->of = s, e->number = ++s->recorded, 0; }
int cuEventQuery(event *e) { return state(e->of, e->number); }
int cuEventSynchronize(event *e) {
    while (state(e->of, e->number) == NOT_READY) usleep(1000);
    return state(e->of, e->number);
}

int cuGetErrorName(int error, const char **text) { return *text = error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR", 0; }
int cuGetErrorString(int error, const char **text) { return (void)error, *text = "requested by the test", 0; }
