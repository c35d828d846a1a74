/* inlane_batch.h: receives packets from inlane's ports and sends packets to them, in C and C++ programs.
 *
 *     struct inlane_receiver *receiver;
 *     struct inlane_batch batch;
 *     size_t length;
 *     int status = inlane_receiver_open(&receiver, "pcap:in.pcap", NULL);
 *     while (status == INLANE_OK && (status = inlane_receiver_next(receiver, INLANE_FOREVER, &batch)) == INLANE_OK)
 *         for (size_t i = 0; i < batch.count; i++)
 *             use(inlane_frame(&batch, i, &length), length);
 *     if (status != INLANE_END)
 *         fprintf(stderr, "%s\n", inlane_error());
 *     inlane_receiver_close(receiver);
 *
 * Link with -linlane_batch, or use `pkg-config --cflags --libs inlane-batch`.
 *
 * Threads: each receiver and sender has threads of its own, which move the packets. Any thread of the program may use a receiver or a
 * sender. Calls from several threads for the same one take turns, except that inlane_receiver_stop and inlane_sender_stop never wait.
 * No call may follow or overlap the call that closes it. A child of fork may use only receivers and senders that it opens itself.
 *
 * Errors: a function that can fail returns a status. inlane_error then explains it: what failed, on which object, what was found, and
 * what to do. Defects of the library are reported as INLANE_FAILED, too, and do not end the program. A packet function of your own that
 * never returns cannot be ended: closing its receiver or sender then waits forever.
 */
#ifndef INLANE_BATCH_H
#define INLANE_BATCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns. The first four numbers are those of the exit status of the command `inlane`. */
enum inlane_status {
    INLANE_OK = 0,
    /* The run failed: a device broke, a packet was malformed, or a defect was found. */
    INLANE_FAILED = 1,
    /* An argument or a setting is wrong. */
    INLANE_USAGE = 2,
    /* A device, file, program, right or peer is missing or in use. */
    INLANE_UNAVAILABLE = 3,
    /* The time was over before there was a packet or room for packets. The call may be repeated. */
    INLANE_TIMEOUT = 4,
    /* There are no further packets. */
    INLANE_END = 5
};

/* Waits without limit, where a function takes a time. */
#define INLANE_FOREVER UINT64_MAX

/* Settings of a receiver or sender. Begin with INLANE_SETTINGS, which leaves everything at its default, and then set members:
 *
 *     struct inlane_settings settings = INLANE_SETTINGS;
 *     settings.function = "macswap";
 */
struct inlane_settings {
    /* The size of this structure. INLANE_SETTINGS sets it, so that a newer library knows which members the program has. */
    size_t size;
    /* The packet function that processes the packets: a built-in one such as "macswap", or a file. NULL: none. */
    const char *function;
    /* The cores that the threads of the run are bound to, and their number. NULL and 0: threads are not bound. */
    const unsigned *cores;
    size_t core_count;
    /* The length of the longest frame in bytes, up to 131072. 0: 2048. Captures that are received need no setting. */
    size_t room;
    /* Receivers: the most frames in a batch. 0: 4096. */
    size_t batch_frames;
    /* Receivers: the longest time in nanoseconds that a received frame waits for others. 0: 100 ms. */
    uint64_t batch_wait_ns;
    /* Receivers: the time in nanoseconds after which the receiver stops by itself. 0: never. */
    uint64_t duration_ns;
};

/* Initializes a struct inlane_settings. */
#ifdef __cplusplus
#define INLANE_SETTINGS { sizeof(struct inlane_settings), NULL, NULL, 0, 0, 0, 0, 0 }
#else
#define INLANE_SETTINGS { .size = sizeof(struct inlane_settings) }
#endif

/* Frames, one after the other in one piece of memory. A frame begins with its Ethernet header and has no FCS. */
struct inlane_batch {
    /* The number of frames. */
    size_t count;
    /* The bytes of all frames. */
    const uint8_t *bytes;
    /* For each frame, the offset of its end in `bytes`. The next frame begins there. */
    const uint64_t *ends;
    /* For each frame, when it was captured or received, in nanoseconds since 1970. Senders ignore it; it may be NULL there. */
    const uint64_t *times_ns;
};

/* Returns the first byte of frame `index`, which is less than `count`, and stores the frame's length in `length`. */
static inline const uint8_t *inlane_frame(const struct inlane_batch *batch, size_t index, size_t *length) {
    uint64_t start = index == 0 ? 0 : batch->ends[index - 1];
    *length = (size_t)(batch->ends[index] - start);
    return batch->bytes + start;
}

/* Receives the frames of a port in batches. */
struct inlane_receiver;

/* Starts to receive from a port, for example "pcap:FILE" or "gen:64", and stores the receiver in `receiver`. `settings` may be NULL. Returns
 * INLANE_USAGE, and stores NULL, if an argument is wrong. What is wrong with the port itself, for example that a file is missing, is the
 * status of the first call of inlane_receiver_next. */
int inlane_receiver_open(struct inlane_receiver **receiver, const char *port, const struct inlane_settings *settings);

/* Stores the next frames in `batch`. Waits up to `most_ns` nanoseconds for the first of them. The batch belongs to the receiver, and
 * is valid until the next call of this function for the same receiver, or until the receiver is closed. If the program is slow, captures
 * and generators wait; other ports lose packets then, and the result counts them.
 *
 * Returns INLANE_TIMEOUT if no frame came in that time, INLANE_END after the last frame, or the status of the error that ended the run.
 * If the status is not INLANE_OK, the batch has no frames. */
int inlane_receiver_next(struct inlane_receiver *receiver, uint64_t most_ns, struct inlane_batch *batch);

/* Stops receiving from the port. The frames that were received before still follow, and INLANE_END after them. Never waits, and may be
 * called in a signal handler. Does nothing if `receiver` is NULL. */
void inlane_receiver_stop(const struct inlane_receiver *receiver);

/* Returns what the run has measured, as JSON: a row of `inlane forward --json`, whose keys `inlane schema forward` describes. The text
 * lives until the receiver is closed. Returns NULL as long as inlane_receiver_next has not returned INLANE_END or an error, and if nothing
 * was measured. */
const char *inlane_receiver_result(struct inlane_receiver *receiver);

/* Ends the run, waits for its threads and frees the receiver. Frames that the program has not taken are lost. Does nothing if `receiver`
 * is NULL. */
void inlane_receiver_close(struct inlane_receiver *receiver);

/* Sends frames to ports in batches. */
struct inlane_sender;

/* Starts to send to `port_count` ports, and stores the sender in `sender`. All frames go to the first port, unless the packet function
 * chooses another one. `settings` may be NULL. Returns INLANE_USAGE, and stores NULL, if an argument is wrong. What is wrong with a port
 * itself is the status of a later call. */
int inlane_sender_open(struct inlane_sender **sender, const char *const *ports, size_t port_count, const struct inlane_settings *settings);

/* Gives copies of the frames of `batch` to the run, which sends them in order. Waits up to `most_ns` nanoseconds until the run has begun to
 * send the batch before it.
 *
 * Returns INLANE_TIMEOUT, and has taken nothing, if that time was over. Returns INLANE_USAGE if the batch is malformed, and otherwise
 * the status of the error that ended the run. */
int inlane_sender_send(struct inlane_sender *sender, const struct inlane_batch *batch, uint64_t most_ns);

/* Waits until every frame was sent, and ends the run. Returns the status of the error if the run failed. Only inlane_sender_result and
 * inlane_sender_close may follow. */
int inlane_sender_finish(struct inlane_sender *sender);

/* Ends the run without the frames that it has not sent yet. Never waits, and may be called in a signal handler. Does nothing if `sender` is
 * NULL. */
void inlane_sender_stop(const struct inlane_sender *sender);

/* Returns what the run has measured, as inlane_receiver_result does. Returns NULL before inlane_sender_finish has returned INLANE_OK. The
 * text lives until the sender is closed. */
const char *inlane_sender_result(struct inlane_sender *sender);

/* Ends the run, waits for its threads and frees the sender. Frames that were not sent yet are lost: call inlane_sender_finish before. Does
 * nothing if `sender` is NULL. */
void inlane_sender_close(struct inlane_sender *sender);

/* Stores a number of a result in `value`. `name` is the path of keys to it, such as "rx.packets", "tx.bytes" or "duration_ns". Numbers up
 * to 2^53 are exact. Returns INLANE_USAGE if the result has no such number, and stores nothing then. */
int inlane_result_number(const char *result, const char *name, double *value);

/* Returns the message of the last call in this thread that returned INLANE_FAILED, INLANE_USAGE or INLANE_UNAVAILABLE, or an empty text.
 * The text lives until the next such call in this thread. Do not free it. */
const char *inlane_error(void);

/* Returns the version of the library, such as "0.1.0". */
const char *inlane_version(void);

#ifdef __cplusplus
}
#endif

#endif
