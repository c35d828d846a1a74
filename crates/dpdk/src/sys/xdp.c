/* The XDP program that gives frames to AF_XDP sockets. It is attached by a BPF link. The kernel detaches the
 * program when the link's last descriptor is closed, which also happens when the process is killed. Until
 * then the kernel lets nobody replace the program. libxdp's program has neither property. */
#include "xdp.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <string.h>
#include <unistd.h>
#include <xdp/xsk.h>

/* The name by which other inlane processes recognise the program. */
#define PROGRAM_NAME "inlane_xsk"

/* The function to call for every socket that the driver opens. It is a pointer, because this file is also
 * linked into programs without the Rust function. */
static inlane_xdp_socket_function *socket_opened;

void inlane_xdp_on_socket(inlane_xdp_socket_function *function)
{
	socket_opened = function;
}

/* Loads the program. Returns its descriptor, or a negative number with errno set. */
static int load(int map)
{
	/* The program is: return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS);
	 * A queue without a socket passes its frames to the kernel. */
	const struct bpf_insn program[] = {
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = BPF_REG_2, .src_reg = BPF_REG_1,
		  .off = offsetof(struct xdp_md, rx_queue_index) },
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};

	return bpf_prog_load(BPF_PROG_TYPE_XDP, PROGRAM_NAME, "Apache-2.0", program, sizeof(program) / sizeof(program[0]),
			     NULL);
}

/* Attaches inlane's program to an interface. Writes the descriptors of the link and of the map of sockets.
 * Returns 0 or a negative error: -EBUSY or -EEXIST if the interface has a program already. */
int inlane_xdp_attach(int interface, uint32_t queues, int *link, int *map)
{
	*map = bpf_map_create(BPF_MAP_TYPE_XSKMAP, PROGRAM_NAME, sizeof(uint32_t), sizeof(int), queues, NULL);
	if (*map < 0)
		return -errno;
	const int program = load(*map);
	int code = program < 0 ? -errno : 0;

	if (code == 0) {
		/* Without flags, the kernel lets the interface's driver run the program if the driver can.
		 * Otherwise the kernel runs the program itself. */
		*link = bpf_link_create(program, interface, BPF_XDP, NULL);
		code = *link < 0 ? -errno : 0;
		/* The link keeps the program loaded, so the descriptor of the program is closed here. */
		close(program);
	}
	if (code != 0)
		close(*map);
	return code;
}

/* Writes the number and name of the program on an interface. Writes 0 if there is no program. The name stays
 * empty if this process may not read it. */
int inlane_xdp_query(int interface, uint32_t *program, char name[INLANE_XDP_NAME_BYTES])
{
	struct bpf_prog_info info = { 0 };
	uint32_t length = sizeof(info);
	const int code = bpf_xdp_query_id(interface, 0, program);

	name[0] = 0;
	if (code != 0 || *program == 0)
		return code;
	const int descriptor = bpf_prog_get_fd_by_id(*program);
	if (descriptor < 0)
		return 0;
	if (bpf_obj_get_info_by_fd(descriptor, &info, &length) == 0)
		memcpy(name, info.name, INLANE_XDP_NAME_BYTES);
	name[INLANE_XDP_NAME_BYTES - 1] = 0;
	close(descriptor);
	return 0;
}

/* Returns a descriptor of the map that inlane's program with the number `program` uses. Returns a negative
 * error otherwise: -EBUSY if the program is not inlane's. */
static int map_of(uint32_t program)
{
	uint32_t map = 0;
	struct bpf_prog_info info = { .nr_map_ids = 1, .map_ids = (uint64_t)(uintptr_t)&map };
	uint32_t length = sizeof(info);
	const int descriptor = bpf_prog_get_fd_by_id(program);

	if (descriptor < 0)
		return -errno;
	int code = bpf_obj_get_info_by_fd(descriptor, &info, &length);
	close(descriptor);
	if (code != 0)
		return -errno;
	if (strcmp(info.name, PROGRAM_NAME) != 0 || info.nr_map_ids != 1)
		return -EBUSY;
	code = bpf_map_get_fd_by_id(map);
	return code < 0 ? -errno : code;
}

/* Opens the link and the map of the program that another inlane process attached to an interface. Returns 0
 * or a negative error: -EBUSY if the program is not inlane's, -EPERM without CAP_SYS_ADMIN, -ENOENT if the
 * program was detached meanwhile. */
int inlane_xdp_share(int interface, int *link, int *map)
{
	uint32_t program = 0, id = 0;
	int code = bpf_xdp_query_id(interface, 0, &program);

	if (code != 0)
		return code;
	if (program == 0)
		return -ENOENT;
	*map = map_of(program);
	if (*map < 0)
		return *map;
	/* The kernel cannot tell which link holds a program, so this loop reads all links until it finds the
	 * one of the program. */
	while (bpf_link_get_next_id(id, &id) == 0) {
		struct bpf_link_info info = { 0 };
		uint32_t length = sizeof(info);

		*link = bpf_link_get_fd_by_id(id);
		if (*link < 0)
			continue;
		if (bpf_obj_get_info_by_fd(*link, &info, &length) == 0 && info.type == BPF_LINK_TYPE_XDP &&
		    info.prog_id == program)
			return 0;
		close(*link);
	}
	close(*map);
	return -ENOENT;
}

/* Makes the program give the frames of a queue to a socket. The kernel removes the entry when the socket is closed. */
int inlane_xdp_set_socket(int map, uint32_t queue, int socket)
{
	return bpf_map_update_elem(map, &queue, &socket, BPF_ANY) == 0 ? 0 : -errno;
}

/* DPDK's driver calls the next two functions instead of those of libxdp and libbpf. build.rs renames the
 * calls in the driver. */

/* Opens a socket without libxdp's program. */
int inlane_xsk_socket_create(struct xsk_socket **socket, const char *interface, __u32 queue, struct xsk_umem *memory,
			     struct xsk_ring_cons *receive, struct xsk_ring_prod *send,
			     const struct xsk_socket_config *configuration)
{
	struct xsk_socket_config own = *configuration;

	own.libbpf_flags |= XSK_LIBBPF_FLAGS__INHIBIT_PROG_LOAD;
	int code = xsk_socket__create(socket, interface, queue, memory, receive, send, &own);
	const int result = socket_opened(interface, queue, code == 0 ? xsk_socket__fd(*socket) : code);
	if (code == 0 && result != 0) {
		xsk_socket__delete(*socket);
		code = result;
	}
	return code;
}

/* Does nothing. The driver calls this function when it closes a device, to remove whichever program the
 * interface has. inlane's program is removed by closing its link instead. */
int inlane_bpf_xdp_detach(int interface, __u32 flags, const struct bpf_xdp_attach_opts *options)
{
	(void)interface;
	(void)flags;
	(void)options;
	return 0;
}
