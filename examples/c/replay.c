/* Receives the frames of a port, sends those with IPv4 to another port, and counts what it has seen:
 *
 *     cc replay.c -o replay $(pkg-config --cflags --libs inlane-batch)
 *     ./replay pcap:examples/capture/mixed.pcap pcap:ipv4.pcap
 */
#include <inlane_batch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program if a call has failed. */
static void check(int status, const char *what) {
    if (status != INLANE_OK) {
        fprintf(stderr, "%s: %s\n", what, inlane_error());
        exit(1);
    }
}

/* ANCHOR: select */
/* The frames to send: their bytes one after the other, and where each ends. */
struct selection {
    uint8_t bytes[1 << 16];
    uint64_t ends[64];
    size_t count;
};

/* Copies the frames with IPv4 from `index` on, as long as there is room. Returns the index of the first frame that it did not look at. */
static size_t select_ipv4(const struct inlane_batch *batch, size_t index, struct selection *selection) {
    uint64_t used = 0;
    size_t length;
    selection->count = 0;
    for (; index < batch->count && selection->count < 64; index++) {
        const uint8_t *frame = inlane_frame(batch, index, &length);
        if (length < 14 || frame[12] != 0x08 || frame[13] != 0x00)
            continue;
        if (used + length > sizeof selection->bytes)
            break;
        memcpy(selection->bytes + used, frame, length);
        used += length;
        selection->ends[selection->count++] = used;
    }
    return index;
}
/* ANCHOR_END: select */

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: replay PORT PORT\n");
        return 2;
    }
    /* ANCHOR: run */
    static struct selection selection;
    const char *output = arguments[2];
    struct inlane_receiver *receiver;
    struct inlane_sender *sender;
    struct inlane_batch batch;
    struct inlane_settings settings = INLANE_SETTINGS;
    settings.room = 16384; /* jumbo frames */

    check(inlane_sender_open(&sender, &output, 1, &settings), "send");
    settings.function = "macswap";
    check(inlane_receiver_open(&receiver, arguments[1], &settings), "receive");
    int status;
    while ((status = inlane_receiver_next(receiver, INLANE_FOREVER, &batch)) == INLANE_OK) {
        for (size_t index = 0; index < batch.count;) {
            index = select_ipv4(&batch, index, &selection);
            struct inlane_batch selected = {selection.count, selection.bytes, selection.ends, NULL};
            check(inlane_sender_send(sender, &selected, INLANE_FOREVER), "send");
        }
    }
    if (status != INLANE_END)
        check(status, "receive");
    check(inlane_sender_finish(sender), "send");
    /* ANCHOR_END: run */

    /* ANCHOR: result */
    double received, sent;
    check(inlane_result_number(inlane_receiver_result(receiver), "rx.packets", &received), "result");
    check(inlane_result_number(inlane_sender_result(sender), "tx.packets", &sent), "result");
    printf("%.0f frames received, %.0f with IPv4 sent\n", received, sent);
    inlane_receiver_close(receiver);
    inlane_sender_close(sender);
    /* ANCHOR_END: result */
    return 0;
}
