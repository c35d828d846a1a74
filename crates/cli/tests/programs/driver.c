/* Stands for libcuda.so.1 where a driver is not what inlane needs: says the version, and answers cuInit, as it is told. */
#include <stdlib.h>

static int told(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuDriverGetVersion(int *version) {
    *version = told("STUB_VERSION", 13000);
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    return told("STUB_INIT", 0);
}

int cuDeviceGetCount(int *count) {
    *count = told("STUB_DEVICES", 0);
    return 0;
}

int cuGetErrorName(int error, const char **text) {
    *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR";
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    (void)error;
    *text = "as the test wants it";
    return 0;
}
