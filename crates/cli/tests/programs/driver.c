/* A stub of libcuda.so.1. Environment variables set its version, the answer of cuInit and the number of devices. */
#include <stdlib.h>

static int setting(const char *name, int fallback) {
    const char *text = getenv(name);
    return text ? atoi(text) : fallback;
}

int cuDriverGetVersion(int *version) {
    *version = setting("STUB_VERSION", 13000);
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    return setting("STUB_INIT", 0);
}

int cuDeviceGetCount(int *count) {
    *count = setting("STUB_DEVICES", 0);
    return 0;
}

int cuGetErrorName(int error, const char **text) {
    *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR";
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    (void)error;
    *text = "an error that the test asked for";
    return 0;
}
