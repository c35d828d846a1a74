/* Buffers into which the engine of `inlane offload` places received bytes without a copy.
 *
 * A program that runs with `inlane offload run` gets memory that it shares with the engine. If a blocking recv or read of at least
 * 4096 bytes waits with such a buffer, the engine writes the bytes there. In all other cases the buffers work like any memory.
 * Without an engine, they come from the C library. The functions need no library; before glibc 2.34, link with -ldl.
 *
 *     char *buffer = inlane_offload_buffer(1 << 20);
 *     ssize_t len = recv(socket, buffer, 1 << 20, 0);
 *     inlane_offload_buffer_free(buffer);
 *
 * Allocate buffers once and reuse them. If several threads use parts of one buffer, let each part begin at a multiple of 4096 bytes,
 * because the library replaces whole pages if the engine is stopped while it writes.
 * A forked child shares the buffers with its parent, as with MAP_SHARED of mmap(2).
 * After a restart of the engine, nothing is placed into the buffers. A peer's engine that may store into this host's memory
 * can also read them. */
#ifndef INLANE_OFFLOAD_H
#define INLANE_OFFLOAD_H

#include <dlfcn.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a buffer of `size` bytes, or NULL if there is no memory. Its contents are undefined. */
static inline void *inlane_offload_buffer(size_t size)
{
    /* A null handle is RTLD_DEFAULT, which <dlfcn.h> defines only with _GNU_SOURCE. */
    void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(NULL, "inlane_offload_allocate");
    return allocate ? allocate(size) : malloc(size);
}

/* Frees a buffer of inlane_offload_buffer, or does nothing if `buffer` is NULL. No thread may use it any more. */
static inline void inlane_offload_buffer_free(void *buffer)
{
    void (*release)(void *) = (void (*)(void *))dlsym(NULL, "inlane_offload_free");
    if (release)
        release(buffer);
    else
        free(buffer);
}

#ifdef __cplusplus
}
#endif

#endif
