/* Calls each function of inlane_batch.h, also with wrong arguments. Prints what is not as expected, and returns 1 then.
 *
 *     calls CAPTURE FOLDER    CAPTURE has 851 frames
 */
#define _POSIX_C_SOURCE 200809L
#include <inlane_batch.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int failures;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            failures++; \
            fprintf(stderr, "line %d: %s is not so; the last message is '%s'\n", __LINE__, #condition, inlane_error()); \
        } \
    } while (0)

static int says(const char *part) { return strstr(inlane_error(), part) != NULL; }

static void *other_thread(void *receiver) {
    CHECK(inlane_error()[0] == '\0'); /* messages belong to a thread */
    inlane_receiver_stop(receiver);
    return NULL;
}

static void wrong_arguments(void) {
    struct inlane_receiver *receiver = (void *)1;
    struct inlane_sender *sender = (void *)1;
    struct inlane_batch batch;
    struct inlane_settings settings = INLANE_SETTINGS;
    const char *no_name[] = {NULL};
    const char *null[] = {"null"};
    double value = 7;

    CHECK(inlane_receiver_open(NULL, "gen:64", NULL) == INLANE_USAGE);
    CHECK(inlane_receiver_open(&receiver, NULL, NULL) == INLANE_USAGE && receiver == NULL && says("port"));
    CHECK(inlane_receiver_open(&receiver, "gne:64", NULL) == INLANE_USAGE && receiver == NULL && says("gne"));
    CHECK(inlane_receiver_open(&receiver, "\xff", NULL) == INLANE_USAGE && says("UTF-8"));
    settings.size = 3;
    CHECK(inlane_receiver_open(&receiver, "gen:64", &settings) == INLANE_USAGE && says("INLANE_SETTINGS"));
    settings.size = sizeof settings;
    settings.core_count = 2;
    CHECK(inlane_receiver_open(&receiver, "gen:64", &settings) == INLANE_USAGE && says("core_count"));
    CHECK(inlane_receiver_next(NULL, 0, &batch) == INLANE_USAGE && batch.count == 0);
    CHECK(inlane_receiver_next(NULL, 0, NULL) == INLANE_USAGE);
    CHECK(inlane_receiver_result(NULL) == NULL);
    inlane_receiver_stop(NULL);
    inlane_receiver_close(NULL);

    CHECK(inlane_sender_open(NULL, null, 1, NULL) == INLANE_USAGE);
    CHECK(inlane_sender_open(&sender, NULL, 1, NULL) == INLANE_USAGE && sender == NULL);
    CHECK(inlane_sender_open(&sender, no_name, 1, NULL) == INLANE_USAGE && says("NULL"));
    CHECK(inlane_sender_open(&sender, null, 0, NULL) == INLANE_USAGE && says("port"));
    CHECK(inlane_sender_send(NULL, &batch, 0) == INLANE_USAGE);
    CHECK(inlane_sender_finish(NULL) == INLANE_USAGE);
    CHECK(inlane_sender_result(NULL) == NULL);
    inlane_sender_stop(NULL);
    inlane_sender_close(NULL);

    CHECK(inlane_result_number("{}", "rx", NULL) == INLANE_USAGE);
    CHECK(inlane_result_number(NULL, "rx", &value) == INLANE_USAGE);
    CHECK(inlane_result_number("no JSON", "rx", &value) == INLANE_USAGE);
    CHECK(inlane_result_number("{\"rx\": {\"packets\": 3}}", "rx.bytes", &value) == INLANE_USAGE && says("packets"));
    CHECK(inlane_result_number("{\"rx\": null}", "rx", &value) == INLANE_USAGE && value == 7);
    CHECK(inlane_result_number("{\"list\": [5, 6]}", "list.1", &value) == INLANE_OK && value == 6);
}

static void errors_of_ports(const char *folder) {
    struct inlane_receiver *receiver;
    struct inlane_sender *sender;
    struct inlane_batch batch;
    char name[512];
    const char *ports[] = {name};
    uint8_t frame[60] = {0};
    uint64_t ends[] = {60}, decreasing[] = {60, 30};
    int status;

    snprintf(name, sizeof name, "pcap:%s/missing/file.pcap", folder);
    CHECK(inlane_receiver_open(&receiver, name, NULL) == INLANE_OK);
    CHECK(inlane_receiver_next(receiver, INLANE_FOREVER, &batch) == INLANE_UNAVAILABLE && says("missing/file.pcap"));
    CHECK(inlane_receiver_next(receiver, INLANE_FOREVER, &batch) == INLANE_END && batch.count == 0);
    CHECK(inlane_receiver_result(receiver) == NULL);
    inlane_receiver_close(receiver);

    CHECK(inlane_sender_open(&sender, ports, 1, NULL) == INLANE_OK);
    batch = (struct inlane_batch){1, frame, ends, NULL};
    do
        status = inlane_sender_send(sender, &batch, INLANE_FOREVER);
    while (status == INLANE_OK);
    CHECK(status == INLANE_UNAVAILABLE && says("missing/file.pcap"));
    CHECK(inlane_sender_result(sender) == NULL);
    inlane_sender_close(sender);

    snprintf(name, sizeof name, "pcap:%s/sent.pcap", folder);
    CHECK(inlane_sender_open(&sender, ports, 1, NULL) == INLANE_OK);
    batch.count = 2;
    batch.ends = decreasing;
    CHECK(inlane_sender_send(sender, &batch, 0) == INLANE_USAGE && says("must not decrease"));
    batch.ends = NULL;
    CHECK(inlane_sender_send(sender, &batch, 0) == INLANE_USAGE && says("ends is NULL"));
    batch = (struct inlane_batch){1, NULL, ends, NULL};
    CHECK(inlane_sender_send(sender, &batch, 0) == INLANE_USAGE && says("bytes is NULL"));
    CHECK(inlane_sender_send(sender, NULL, 0) == INLANE_USAGE);
    batch.count = 0;
    CHECK(inlane_sender_send(sender, &batch, INLANE_FOREVER) == INLANE_OK);
    CHECK(inlane_sender_finish(sender) == INLANE_OK);
    CHECK(inlane_sender_finish(sender) == INLANE_USAGE);
    batch = (struct inlane_batch){1, frame, ends, NULL};
    CHECK(inlane_sender_send(sender, &batch, INLANE_FOREVER) == INLANE_USAGE);
    inlane_sender_close(sender);
}

static void receives(const char *capture) {
    struct inlane_receiver *receiver;
    struct inlane_batch batch;
    struct inlane_settings settings = INLANE_SETTINGS;
    char name[512];
    size_t frames = 0, bytes = 0, length;
    double value = 0;
    int status;

    snprintf(name, sizeof name, "pcap:%s", capture);
    settings.function = "macswap";
    settings.batch_frames = 100;
    settings.batch_wait_ns = 1000000;
    CHECK(inlane_receiver_open(&receiver, name, &settings) == INLANE_OK);
    while ((status = inlane_receiver_next(receiver, INLANE_FOREVER, &batch)) == INLANE_OK) {
        CHECK(batch.count > 0 && batch.count <= 100 && batch.times_ns[0] > 0);
        for (size_t index = 0; index < batch.count; index++) {
            inlane_frame(&batch, index, &length);
            bytes += length;
        }
        frames += batch.count;
    }
    CHECK(status == INLANE_END && frames == 851);
    CHECK(inlane_result_number(inlane_receiver_result(receiver), "rx.bytes", &value) == INLANE_OK && value == (double)bytes);
    CHECK(strstr(inlane_receiver_result(receiver), "macswap") != NULL);
    inlane_receiver_close(receiver);
}

static void stops_and_times(void) {
    struct inlane_receiver *receiver;
    struct inlane_sender *sender;
    struct inlane_batch batch;
    struct inlane_settings settings = INLANE_SETTINGS;
    const char *null[] = {"null"};
    pthread_t thread;
    int status;

    /* The first frame of this generator is late. */
    CHECK(inlane_receiver_open(&receiver, "gen:64,rate=1pps,packets=5", NULL) == INLANE_OK);
    do
        status = inlane_receiver_next(receiver, 1000, &batch);
    while (status == INLANE_OK);
    CHECK(status == INLANE_TIMEOUT && batch.count == 0);
    CHECK(inlane_receiver_result(receiver) == NULL);
    inlane_receiver_close(receiver);

    CHECK(inlane_receiver_open(&receiver, "gen:64", NULL) == INLANE_OK);
    CHECK(inlane_receiver_next(receiver, INLANE_FOREVER, &batch) == INLANE_OK);
    CHECK(pthread_create(&thread, NULL, other_thread, receiver) == 0 && pthread_join(thread, NULL) == 0);
    while ((status = inlane_receiver_next(receiver, INLANE_FOREVER, &batch)) == INLANE_OK)
        ;
    CHECK(status == INLANE_END && inlane_receiver_result(receiver) != NULL);
    inlane_receiver_close(receiver);

    settings.duration_ns = 1;
    CHECK(inlane_receiver_open(&receiver, "gen:64", &settings) == INLANE_OK);
    while ((status = inlane_receiver_next(receiver, INLANE_FOREVER, &batch)) == INLANE_OK)
        ;
    CHECK(status == INLANE_END);
    inlane_receiver_close(receiver);

    CHECK(inlane_receiver_open(&receiver, "gen:64", NULL) == INLANE_OK);
    inlane_receiver_close(receiver); /* while it runs */
    CHECK(inlane_sender_open(&sender, null, 1, NULL) == INLANE_OK);
    inlane_sender_stop(sender);
    inlane_sender_close(sender);
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    CHECK(inlane_error()[0] == '\0' && strchr(inlane_version(), '.') != NULL);
    wrong_arguments();
    errors_of_ports(arguments[2]);
    receives(arguments[1]);
    stops_and_times();
    return failures > 0;
}
