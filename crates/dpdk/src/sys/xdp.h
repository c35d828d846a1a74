/* The XDP program of AF_XDP ports: see xdp.c. */
#ifndef INLANE_DPDK_XDP_H
#define INLANE_DPDK_XDP_H

#include <stdint.h>

/* BPF_OBJ_NAME_LEN. */
#define INLANE_XDP_NAME_BYTES 16

/* Called when the driver has tried to open an AF_XDP socket for a queue. `result` is the socket's descriptor,
 * or a negative error. The function returns 0 or a negative error; after an error the socket is closed. */
typedef int inlane_xdp_socket_function(const char *interface, uint32_t queue, int result);

void inlane_xdp_on_socket(inlane_xdp_socket_function *function);
int inlane_xdp_attach(int interface, uint32_t queues, int *link, int *map);
int inlane_xdp_query(int interface, uint32_t *program, char name[INLANE_XDP_NAME_BYTES]);
int inlane_xdp_share(int interface, int *link, int *map);
int inlane_xdp_set_socket(int map, uint32_t queue, int socket);

#endif
