/* A peer with Linux's software RoCEv2 (rxe), for lab/src/bin/rdma-check. It reads a command from each line of stdin, and answers
 * with one line.
 *
 *   rxe-peer LOCAL REMOTE       IPv4 addresses; the device rxe0 has the first one
 *
 *   pair QUEUE_PAIR PSN OWN_PSN BYTES   connects a new queue pair to the remote one, which sends PSN first, and registers BYTES of
 *                                       zeros at address 0. Answers with the new queue pair's number and the memory's key
 *   receive COUNT                       posts receives without memory, which RDMA WRITEs with immediate data consume
 *   write ADDRESS KEY LENGTH            posts an RDMA WRITE of the pattern's bytes from ADDRESS on
 *   completions COUNT                   waits for so many completions. Answers with the status, kind, length and immediate data of
 *                                       each, and of further ones that are there
 *   check LENGTH                        answers 'same' if the memory has LENGTH bytes of the pattern, and zeros after them
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEPTH = 256, SOURCE = 1 << 18, LIMIT_S = 60 };

static struct ibv_context *device;
static struct ibv_pd *domain;
static struct ibv_cq *queue;
static struct ibv_qp *pair;
static struct ibv_mr *source, *target;

static void require(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

/* Returns byte `index` of the pattern. The pattern of rdma-check is the same. */
static unsigned char byte(size_t index)
{
    return index * 7 + index / 251 + 1;
}

/* Returns the GID of an IPv4 address. */
static union ibv_gid gid_of(const char *address)
{
    union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
    require(inet_pton(AF_INET, address, gid.raw + 12) == 1, "an IPv4 address");
    return gid;
}

/* Returns memory of whole pages, with zeros. */
static void *pages(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    require(memory != NULL, "memory");
    return memset(memory, 0, bytes);
}

static int index_of(const union ibv_gid *wanted)
{
    union ibv_gid gid;
    for (int index = 0; ibv_query_gid(device, 1, index, &gid) == 0; index++)
        if (memcmp(&gid, wanted, sizeof gid) == 0)
            return index;
    require(0, "the address is not one of rxe0");
    return -1;
}

static void connect_pair(const char *local, const char *remote, unsigned number, unsigned psn, unsigned own_psn, size_t bytes)
{
    if (pair) {
        ibv_destroy_qp(pair);
        void *memory = target->addr;
        ibv_dereg_mr(target);
        free(memory);
    }
    target = ibv_reg_mr_iova(domain, pages(bytes), bytes, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    require(target != NULL, "ibv_reg_mr_iova");
    struct ibv_qp_init_attr kind = {
        .send_cq = queue,
        .recv_cq = queue,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    pair = ibv_create_qp(domain, &kind);
    require(pair != NULL, "ibv_create_qp");
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    require(!ibv_modify_qp(pair, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    union ibv_gid own = gid_of(local);
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = number,
        .rq_psn = psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12, /* 0.64 ms */
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid_of(remote), .sgid_index = index_of(&own), .hop_limit = 64}},
    };
    require(!ibv_modify_qp(pair, &receive,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            "RTR");
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS,
        .timeout = 18, /* 1.07 s */
        .retry_cnt = 7,
        .rnr_retry = 7,
        .sq_psn = own_psn,
        .max_rd_atomic = 1,
    };
    require(!ibv_modify_qp(pair, &send,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                               IBV_QP_MAX_QP_RD_ATOMIC),
            "RTS");
    printf("pair %u %u\n", pair->qp_num, target->rkey);
}

static void post_receives(int count)
{
    while (count-- > 0) {
        struct ibv_recv_wr request = {0}, *bad;
        require(!ibv_post_recv(pair, &request, &bad), "ibv_post_recv");
    }
    puts("ok");
}

static void post_write(unsigned long address, unsigned key, unsigned length)
{
    struct ibv_sge part = {(unsigned long)source->addr + address, length, source->lkey};
    struct ibv_send_wr request = {.sg_list = &part, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    require(address + length <= SOURCE, "the source is too small");
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = key;
    require(!ibv_post_send(pair, &request, &bad), "ibv_post_send");
    puts("ok");
}

static void await_completions(int count)
{
    time_t end = time(NULL) + LIMIT_S;
    printf("completions");
    for (;;) {
        struct ibv_wc done;
        if (ibv_poll_cq(queue, 1, &done) == 0) {
            if (count <= 0 || time(NULL) >= end)
                break;
            nanosleep(&(struct timespec){0, 1000000}, NULL);
            continue;
        }
        /* Only the status is valid if it is an error. */
        int ok = done.status == IBV_WC_SUCCESS;
        const char *kind = !ok                             ? "failed"
                           : done.opcode & IBV_WC_RECV     ? "received"
                           : done.opcode == IBV_WC_RDMA_WRITE ? "written"
                                                           : "other";
        int has_immediate = ok && done.wc_flags & IBV_WC_WITH_IMM;
        printf(" %d:%s:%u:%u", done.status, kind, ok ? done.byte_len : 0, has_immediate ? ntohl(done.imm_data) : 0);
        count--;
    }
    puts(count > 0 ? " timeout" : "");
}

static void check(size_t length)
{
    const unsigned char *memory = target->addr;
    for (size_t index = 0; index < target->length; index++)
        if (memory[index] != (index < length ? byte(index) : 0)) {
            printf("byte %zu differs\n", index);
            return;
        }
    puts("same");
}

int main(int count, char **arguments)
{
    require(count == 3, "give two addresses");
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    require(list != NULL && devices == 1, "there must be one RDMA device");
    device = ibv_open_device(list[0]);
    require(device != NULL, "ibv_open_device");
    domain = ibv_alloc_pd(device);
    queue = ibv_create_cq(device, 2 * DEPTH, NULL, NULL, 0);
    require(domain != NULL && queue != NULL, "a protection domain and a completion queue");
    unsigned char *memory = pages(SOURCE);
    for (size_t index = 0; index < SOURCE; index++)
        memory[index] = byte(index);
    source = ibv_reg_mr(domain, memory, SOURCE, 0);
    require(source != NULL, "ibv_reg_mr");
    setvbuf(stdout, NULL, _IOLBF, 0);
    char line[200];
    while (fgets(line, sizeof line, stdin)) {
        unsigned a, b, c, d;
        if (sscanf(line, "pair %u %u %u %u", &a, &b, &c, &d) == 4)
            connect_pair(arguments[1], arguments[2], a, b, c, d);
        else if (sscanf(line, "receive %u", &a) == 1)
            post_receives(a);
        else if (sscanf(line, "write %u %u %u", &a, &b, &c) == 3)
            post_write(a, b, c);
        else if (sscanf(line, "completions %u", &a) == 1)
            await_completions(a);
        else if (sscanf(line, "check %u", &a) == 1)
            check(a);
        else
            require(0, line);
    }
    return 0;
}
